"""When the certificates of the ports expire."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class CertificateHolder(Protocol):
    """What serves a certificate. None: it cannot be read."""

    @property
    def expires_at_s(self) -> float | None: ...


def certificate_family(ports: Mapping[str, CertificateHolder | None]) -> Metric:
    """`ports` by name; None: without TLS."""
    family = GaugeMetricFamily(
        "slipstream:certificate_expiry_timestamp_seconds",
        "When the certificate that a port serves expires, in seconds since 1970. That of the admin API is on the "
        "driver's page.",
        labels=["port"],
    )
    for port, holder in ports.items():
        if holder is not None and holder.expires_at_s is not None:
            family.add_metric([port], holder.expires_at_s)
    return family


class CertificatePage(Collector):
    """The expiry of these ports' certificates on a page of Prometheus' library."""

    def __init__(self, ports: Mapping[str, CertificateHolder | None]) -> None:
        self._ports = ports

    def collect(self) -> Iterator[Metric]:
        """Called at every scrape."""
        yield certificate_family(self._ports)
