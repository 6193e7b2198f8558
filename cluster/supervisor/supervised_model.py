"""A model as the supervisor knows it: which of its workers are wanted, and what keeps all of them from coming."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from slipstream.cluster.supervisor.managed import ManagedGroup
from slipstream.router.registry.expected_workers import ExpectedWorkers


@dataclass(slots=True)
class SupervisedModel:
    """`max_model_len` is the longest sequence that its decode workers will take; None: what the model allows.
    `is_leaving`: its groups are not wanted any more, and go when the router has drained them."""

    max_model_len: int | None
    has_served: bool = False
    is_leaving: bool = False

    def expected(self, groups: Collection[ManagedGroup], is_settled: bool) -> ExpectedWorkers:
        """What the router is to expect. `groups` are all of this model's; the cluster `is_settled` once it is up."""
        wanted = [managed for managed in groups if managed.is_wanted and not self.is_leaving]
        num_decode = sum(managed.member.role == "decode" for managed in wanted)
        has_served = is_settled and self.has_served
        num_prefill = len(wanted) - num_decode
        return ExpectedWorkers(num_prefill, num_decode, self.max_model_len, has_served, _hindrance(groups))


def _hindrance(groups: Collection[ManagedGroup]) -> str:
    """Why no decode worker can come before an operator does something; "": one can, or none is wanted."""
    decode = [managed for managed in groups if managed.member.role == "decode" and not managed.is_leaving]
    wanted = [managed for managed in decode if managed.is_wanted]
    if wanted:
        return wanted[0].last_death if all(managed.refuses for managed in wanted) else ""
    failed = next((managed.status for managed in decode if managed.status.state == "failed"), None)
    return f"{failed.name}: {failed.detail}" if failed is not None else ""
