"""How the requests to a tensor model are divided between its versions, and what changes that."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from slipstream.router.config.router_config import check_split

ALL_PERCENT = 100.0


@dataclass(frozen=True, slots=True)
class TensorMirrorConfig:
    """`percent` of the requests that name no version are copied to this one, which gets no others of these."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    version: str
    percent: float = ALL_PERCENT

    def __post_init__(self) -> None:
        check_number("mirror.version", self.version)
        if not 0 < self.percent <= ALL_PERCENT:
            raise ValueError(f"mirror.percent must be over 0 and at most 100, got {self.percent:g}")


@dataclass(frozen=True, slots=True)
class TensorVersionsConfig:
    """`split` gives the versions their shares, in any unit, of the requests that name none; null: all go to the highest
    version. With a `mirror`, requests are copied. `before` is the version that a roll-back returns to; "": there is
    none to return to."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    split: dict[str, float] | None = None
    mirror: TensorMirrorConfig | None = None
    before: str = ""

    def __post_init__(self) -> None:
        if self.before:
            check_number("before", self.before)
        if self.split is None:
            return
        check_split(self.split)
        for version in self.split:
            check_number("split", version)
        if self.mirror is not None and self.split.get(self.mirror.version, 0.0) > 0:
            raise ValueError(f"mirror.version must have no share in split, got {self.mirror.version}")

    @property
    def only(self) -> str:
        """The version that has all requests; "" if several share, or if none is named."""
        shares = [version for version, weight in (self.split or {}).items() if weight > 0]
        return shares[0] if len(shares) == 1 else ""

    def with_split(self, split: dict[str, float]) -> TensorVersionsConfig:
        """With other shares. A version that is mirrored to and now gets one is mirrored to no more. What had all
        requests, or else the largest share of the first split, is what a roll-back returns to. Raises ValueError."""
        mirror = self.mirror if self.mirror is None or not split.get(self.mirror.version) else None
        now = TensorVersionsConfig(dict(split), mirror)
        before = self.only or self.before or _largest(split)
        return replace(now, before="" if before == now.only else before)

    def with_mirror(self, mirror: TensorMirrorConfig | None) -> TensorVersionsConfig:
        """With another mirror, or none. Raises ValueError."""
        return replace(self, mirror=mirror)

    def rolled_back(self) -> TensorVersionsConfig:
        """All requests to what served before, and no copies. Raises ValueError."""
        if not self.before and self.mirror is None:
            raise ValueError("there is no earlier version to go back to")
        return TensorVersionsConfig({self.before: 1.0} if self.before else self.split)


def _largest(split: dict[str, float]) -> str:
    """Of several with the same share, the lowest number."""
    return max(sorted(split, key=int), key=lambda version: split[version])


def check_number(key: str, version: str) -> None:
    """Raises ValueError."""
    if not (version.isascii() and version.isdigit()) or str(int(version)) != version:
        raise ValueError(f"{key} must name versions by their numbers, got {version!r}")
