"""What the router has measured of its workers, per role. A profile of the hardware is made of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from slipstream.router.protocol.messages import ROLES, Role
from slipstream.router.registry.service_times import KINDS, ServiceTimes
from slipstream.router.registry.worker_registry import WorkerRegistry


@dataclass(frozen=True, slots=True)
class RoleProfile:
    """The measurements of one role. `times` are the pool's service times (`ServiceTimes.to_dict`), and `num_samples`
    says how many samples of each kind there were (0: the numbers are a guess). The sizes are those of the pool's
    smallest worker; normally all workers of a pool are alike."""

    role: Role
    num_workers: int
    tp: int
    page_tokens: int
    num_pages: int
    max_slots: int
    max_step_tokens: int
    max_queued_tokens: int
    max_model_len: int
    num_samples: dict[str, int]
    times: dict[str, Any]


def worker_profiles(registry: WorkerRegistry) -> Iterator[RoleProfile]:
    """The measurements of every role that has a worker."""
    for role in ROLES:
        hellos = [worker.hello for worker in registry if worker.hello.role == role]
        if not hellos:
            continue
        times: ServiceTimes = registry.pools[role]
        yield RoleProfile(
            role=role,
            num_workers=len(hellos),
            tp=min(hello.tp for hello in hellos),
            page_tokens=min(hello.page_tokens for hello in hellos),
            num_pages=min(hello.num_pages for hello in hellos),
            max_slots=min(hello.max_slots for hello in hellos),
            max_step_tokens=min(hello.max_step_tokens for hello in hellos),
            max_queued_tokens=min(hello.max_queued_tokens for hello in hellos),
            max_model_len=min(hello.max_model_len for hello in hellos),
            num_samples={kind: times.num_samples(kind) for kind in KINDS},
            times=times.to_dict(),
        )
