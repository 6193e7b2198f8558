"""Judges whether the new version does as well as the old one. Pure.

Two kinds of judgements. What is plainly broken (`failing`, `much_slower`) is looked for all the time. Whether the
version is as good as the old one (`worse`) is judged once, when a step has seen enough requests: a test that is
repeated until it finds something finds it by chance.

Tolerance and confidence are those of Kayenta's judge (NetflixACAJudge: tolerance 0.25, confLevel 0.98), and so is the
number of requests (`UpdateOptions.min_requests`: "at least 50 pieces of data per metric" in Spinnaker's best practices
for canaries). The tolerated share of errors is Flagger's (request-success-rate, min 99).
"""

from __future__ import annotations

import math
from statistics import NormalDist

from slipstream.cluster.fleet.update_plan import VersionLoad
from slipstream.router.status.version_status import LogMoments

MIN_FAILURES = 3  # because transfers fail now and then, whatever the version
MAX_FAILURE_SHARE = 0.05  # of the requests, beyond twice the old version's share
MIN_COMPARED = 20  # requests of each version, before times are compared: below, means are not nearly normal
MUCH_SLOWER = 2.0  # as a factor of the old version's typical time
MUCH_SLOWER_S = 0.2  # and slower by at least this, because on an idle cluster milliseconds double for no reason
CONFIDENCE = 0.98
ERROR_TOLERANCE = 0.01
TTFT_SLACK_S = 0.05  # and slower by at least this
ITL_SLACK_S = 0.005

Z = NormalDist().inv_cdf(CONFIDENCE)


def is_counted_anew(now: VersionLoad, then: VersionLoad) -> bool:
    """Whether another router counts than then, which began with zero."""
    return now.num_requests < then.num_requests or now.num_ended < then.num_ended


def since(now: VersionLoad, then: VersionLoad) -> VersionLoad:
    """What was counted between two looks, as far as the router that counts now has seen it."""
    if is_counted_anew(now, then):
        return now
    return VersionLoad(
        now.num_requests - then.num_requests,
        now.num_failed_attempts - then.num_failed_attempts,
        now.num_ended - then.num_ended,
        now.num_errors - then.num_errors,
        now.ttft.since(then.ttft),
        now.itl.since(then.itl),
        now.mirror,
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


def much_slower(new: VersionLoad, old: VersionLoad) -> str | None:
    """Why no more requests should be spent on the new version (its first tokens come far later); else None."""
    if not _is_comparable(new.ttft, old.ttft):
        return None
    if new.ttft.typical_s <= max(MUCH_SLOWER * old.ttft.typical_s, old.ttft.typical_s + MUCH_SLOWER_S):
        return None
    return slower_text("its first tokens take", "s", 1.0, new.ttft, old.ttft)


def worse(new: VersionLoad, old: VersionLoad, tolerance: float) -> str | None:
    """Why the new version is considered worse: more of its requests fail, its first tokens or its further tokens take
    longer by more than `tolerance` (0.25: a quarter). None if nothing of that is certain enough."""
    return more_errors(new, old) or _slower(new, old, tolerance)


def comparison(new: VersionLoad, old: VersionLoad) -> str:
    """The typical times of both for people, as far as they are known."""
    parts = [
        f"{what} {_time(ours, factor, unit)} beside {_time(theirs, factor, unit)}"
        for what, unit, factor, ours, theirs in (
            ("TTFT", "s", 1.0, new.ttft, old.ttft),
            ("ITL", "ms", 1e3, new.itl, old.itl),
        )
        if _is_comparable(ours, theirs)
    ]
    return ", ".join(parts) or "too few requests on both versions to compare times"


def more_errors(new: VersionLoad, old: VersionLoad) -> str | None:
    """Why the new version is considered to fail more often; else None."""
    num_bad = new.num_failed_attempts + new.num_errors
    if num_bad < MIN_FAILURES or not new.num_requests:
        return None
    usual = (old.num_failed_attempts + old.num_errors) / old.num_requests if old.num_requests else 0.0
    if _least_share(num_bad, max(new.num_requests, num_bad)) <= usual + ERROR_TOLERANCE:
        return None
    return f"{num_bad} errors with {new.num_requests} requests, {usual:.1%} on the old version"


def _least_share(num: int, out_of: int) -> float:
    """The lower end of Wilson's interval (1927): a share that the true one exceeds with the confidence."""
    share, z2 = num / out_of, Z * Z / out_of
    return (share + z2 / 2 - math.sqrt(z2 * (share * (1 - share) + z2 / 4))) / (1 + z2)


def _slower(new: VersionLoad, old: VersionLoad, tolerance: float) -> str | None:
    if is_slower(new.ttft, old.ttft, tolerance, TTFT_SLACK_S):
        found = slower_text("its first tokens take", "s", 1.0, new.ttft, old.ttft)
    elif is_slower(new.itl, old.itl, tolerance, ITL_SLACK_S):
        found = slower_text("its tokens take", "ms", 1e3, new.itl, old.itl)
    else:
        return None
    return f"{found}: over {tolerance:.0%} longer with {CONFIDENCE:.0%} confidence"


def is_slower(new: LogMoments, old: LogMoments, tolerance: float, slack_s: float) -> bool:
    """One-sided Welch test of the logarithms, with a margin."""
    if not _is_comparable(new, old) or new.typical_s <= old.typical_s + slack_s:
        return False
    error = math.sqrt(new.error_squared + old.error_squared)
    return new.mean - old.mean - Z * error > math.log1p(tolerance)


def _is_comparable(new: LogMoments, old: LogMoments) -> bool:
    return min(new.num, old.num) >= MIN_COMPARED


def slower_text(what: str, unit: str, factor: float, new: LogMoments, old: LogMoments) -> str:
    ours, theirs = _time(new, factor, unit), _time(old, factor, unit)
    return f"{what} {ours} ({new.num} requests), those of the old version {theirs} ({old.num})"


def _time(moments: LogMoments, factor: float, unit: str) -> str:
    return f"{moments.typical_s * factor:.{3 if unit == 's' else 1}f} {unit}"
