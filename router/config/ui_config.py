"""Settings of the page for people."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import urlsplit

from slipstream.router.tls.client_tls import ClientTlsConfig


@dataclass(frozen=True, slots=True)
class UiConfig:
    """The page at `/ui`. Its calls for administrators go to the admin API at `admin_url`, which checks their token; "":
    that of this cluster, if it has one. `admin_tls` is for one over https. With `admin_calls` false the page only
    shows."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    enabled: bool = True
    admin_calls: bool = True
    admin_url: str = ""
    admin_tls: ClientTlsConfig = field(default_factory=ClientTlsConfig)

    def __post_init__(self) -> None:
        if self.admin_url and not self._is_base():
            raise ValueError(f"admin_url must be http://HOST:PORT or https://HOST:PORT, got {self.admin_url!r}")
        if self.admin_tls != ClientTlsConfig() and not self.admin_url.startswith("https:"):
            raise ValueError(f"admin_url must be https://HOST:PORT where there is admin_tls, got {self.admin_url!r}")

    @property
    def calls_admin(self) -> bool:
        """Whether there is an admin API that the page may call."""
        return self.enabled and self.admin_calls and bool(self.admin_url)

    def _is_base(self) -> bool:
        try:
            url = urlsplit(self.admin_url)
            return (
                url.scheme in ("http", "https")
                and bool(url.hostname)
                and url.port is not None
                and url.path in ("", "/")
            )
        except ValueError:  # half an IPv6 address, a port above 65535
            return False
