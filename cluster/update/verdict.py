"""Judges whether the new version does as well as the old one. Pure."""

from __future__ import annotations

from slipstream.cluster.fleet.update_plan import VersionLoad

MIN_FAILURES = 3  # because transfers fail now and then, whatever the version
MAX_FAILURE_SHARE = 0.05  # of the requests, beyond twice the old version's share
MIN_FIRST_TOKENS = 20  # of each version, before times are compared
SLOWER = 2.0  # as a factor of the old version's mean
SLOWER_S = 0.2  # and slower by at least this, because on an idle cluster milliseconds double for no reason


def since(now: VersionLoad, then: VersionLoad) -> VersionLoad:
    """What was counted between two looks. A router that was restarted counts from zero."""
    if now.num_requests < then.num_requests or now.num_ended < then.num_ended:
        return now
    return VersionLoad(
        now.num_requests - then.num_requests,
        now.num_failed_attempts - then.num_failed_attempts,
        now.num_first_tokens - then.num_first_tokens,
        now.ttft_s - then.ttft_s,
        now.num_ended - then.num_ended,
    )


def failing(new: VersionLoad, old: VersionLoad) -> str | None:
    """Why the new version is considered broken (too many failures that the version may be to blame for); else None."""
    if new.num_failed_attempts < MIN_FAILURES:
        return None
    share = new.num_failed_attempts / max(new.num_requests, 1)
    usual = old.num_failed_attempts / old.num_requests if old.num_requests else 0.0
    if share <= 2 * usual + MAX_FAILURE_SHARE:
        return None
    return f"{new.num_failed_attempts} attempts failed on it with {new.num_requests} requests"


def slower(new: VersionLoad, old: VersionLoad) -> str | None:
    """Why the new version is considered too slow (its first tokens come later); else None."""
    if min(new.num_first_tokens, old.num_first_tokens) < MIN_FIRST_TOKENS:
        return None
    mean_s, usual_s = new.ttft_s / new.num_first_tokens, old.ttft_s / old.num_first_tokens
    if mean_s <= max(SLOWER * usual_s, usual_s + SLOWER_S):
        return None
    return f"its first tokens take {mean_s:.3f} s on average, those of the old version {usual_s:.3f} s"
