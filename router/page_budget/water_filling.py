"""Weighted max-min fairness: divides an amount so that none gets more than it wants, and what one does not want goes to
the others in proportion to their weights (Bertsekas and Gallager, Data Networks, 6.5.2)."""

from __future__ import annotations

from collections.abc import Sequence


def water_fill(amount: float, wants: Sequence[float], weights: Sequence[float]) -> list[float]:
    """What each gets of `amount`; all they want if there is enough. The weights are over 0."""
    if sum(wants) <= amount:
        return list(wants)
    given = [0.0] * len(wants)
    if amount <= 0.0:
        return given
    by_level = sorted(range(len(wants)), key=lambda at: wants[at] / weights[at])
    weight = sum(weights)
    for at in by_level:  # the first to be satisfied by a rising level of water comes first
        given[at] = max(0.0, min(wants[at], amount * weights[at] / weight))
        amount -= given[at]
        weight -= weights[at]
        if weight <= 0.0:  # the last; rounding may leave a trace of weight
            break
    return given
