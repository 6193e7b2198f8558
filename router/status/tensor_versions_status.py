"""The versions of a tensor model: their shares of the requests, and how they do."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from slipstream.router.status.version_status import LogMoments


@dataclass(frozen=True, slots=True)
class TensorVersionStatus:
    """`share` is that of requests that name no version. `times` are those of requests that succeeded, `total_s` is
    their sum."""

    version: str
    share: float
    num_succeeded: int
    num_failed: int
    total_s: float
    times: LogMoments = field(default_factory=LogMoments)


@dataclass(slots=True)
class TensorMirrorCounts:
    """What has become of copies. Answers are compared where neither failed: they are equal if each output has the same
    bytes. What the version could not keep up with is skipped."""

    version: str
    percent: float
    num_copied: int = 0
    num_skipped: int = 0
    num_failed: int = 0
    num_compared: int = 0
    num_equal: int = 0


@dataclass(frozen=True, slots=True)
class TensorVersionsStatus:
    """`versions` are those that serve, the lowest first."""

    versions: tuple[TensorVersionStatus, ...]
    mirror: TensorMirrorCounts | None = None

    def as_plain(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def line(self) -> str:
        """All in one line, for people."""
        total = sum(one.share for one in self.versions)
        parts = [_version_in_words(one, total) for one in self.versions]
        if self.mirror is not None:
            counts = self.mirror
            parts.append(
                f"{counts.percent:g} % mirrored to {counts.version}: {counts.num_copied} requests copied, "
                f"{counts.num_skipped} skipped, {counts.num_failed} failed, {counts.num_equal} of "
                f"{counts.num_compared} answers equal"
            )
        return "; ".join(parts) or "no version serves"


def _version_in_words(one: TensorVersionStatus, total: float) -> str:
    share = f"{100 * one.share / total:g} %" if total else "0 %"
    took = f", {1e3 * one.total_s / one.num_succeeded:.1f} ms each" if one.num_succeeded else ""
    return f"version {one.version}: {share}, {one.num_succeeded} requests{took}, {one.num_failed} failed"
