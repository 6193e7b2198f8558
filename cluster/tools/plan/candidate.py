"""A way to serve a workload: which workers in which roles, the size of their steps, and how requests are placed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from slipstream.cluster.tools.sim.hardware.hardware_profile import WorkerProfile
from slipstream.cluster.tools.sim.sim_config import Split
from slipstream.router.config.router_config import PolicyName

MAX_SPLITS = 8  # tried at first for one number of workers; later also the neighbours of the best
CHUNK_FACTORS = (0.25, 4.0)  # relative to the profile's chunk
MIN_CHUNK = 64


@dataclass(frozen=True, slots=True)
class DeploymentCandidate:
    """`prefill` and `decode` are the profiles of the workers of each role. `chunk_tokens` is the most prompt tokens
    that a worker computes in one step; None: as in its profile."""

    split: Split
    prefill: WorkerProfile
    decode: WorkerProfile
    chunk_tokens: int | None = None
    policy: PolicyName = "slo"

    @property
    def is_colocated(self) -> bool:
        return self.split.num_prefill == 0

    @property
    def num_workers(self) -> int:
        return self.split.num_prefill + self.split.num_decode

    @property
    def num_devices(self) -> int:
        """The number of GPUs; or of workers, if they have none."""
        return self.split.num_prefill * devices(self.prefill) + self.split.num_decode * devices(self.decode)

    @property
    def price_per_hour(self) -> float | None:
        """Of all workers; None where a profile has no price."""
        price = 0.0
        for number, profile in ((self.split.num_prefill, self.prefill), (self.split.num_decode, self.decode)):
            if number and profile.price_per_hour is None:
                return None
            price += number * (profile.price_per_hour or 0.0)
        return price

    @property
    def chunk(self) -> int:
        role = self.decode.decode if self.is_colocated else self.prefill.prefill
        return self.chunk_tokens or role.max_step_tokens

    @property
    def name(self) -> str:
        parts = [self.split.name]
        if devices(self.decode) > 1 or devices(self.prefill) > 1:
            tp = f"TP {devices(self.decode)}"
            if not self.is_colocated and devices(self.prefill) != devices(self.decode):
                tp = f"TP {devices(self.prefill)}/{devices(self.decode)}"
            parts.append(tp)
        if self.chunk_tokens is not None:
            parts.append(f"chunk {self.chunk_tokens}")
        if self.policy != "slo":
            parts.append(self.policy)
        return ", ".join(parts)

    def profile(self) -> WorkerProfile:
        """One profile for both kinds of workers. Pages and links are those of the decode workers, where sequences
        live."""
        prefill, decode = self.prefill.prefill, self.decode.decode
        if self.chunk_tokens is not None and self.is_colocated:
            decode = replace(decode, max_step_tokens=self.chunk_tokens)
        elif self.chunk_tokens is not None:
            prefill = replace(prefill, max_step_tokens=self.chunk_tokens)
        whole = replace(self.decode, prefill=prefill, decode=decode)
        if whole.shared_cores:  # more workers would be started on the same machine
            whole = replace(whole, workers_per_host=max(whole.workers_per_host, self.num_workers))
        return whole


def devices(profile: WorkerProfile) -> int:
    return max(profile.gpus, 1)


def splits(profiles: Sequence[WorkerProfile], num_devices: int) -> Iterator[DeploymentCandidate]:
    """Candidates for so many devices, colocated and disaggregated, for each profile and each pair of profiles.
    Colocated ones come first."""
    for profile in profiles:
        if num_devices >= devices(profile):
            yield DeploymentCandidate(Split(0, num_devices // devices(profile)), profile, profile)
    for prefill in profiles:
        for decode in profiles:
            for num_prefill, num_decode in shares(num_devices, devices(prefill), devices(decode)):
                yield DeploymentCandidate(Split(num_prefill, num_decode), prefill, decode)


def shares(num_devices: int, of_prefill: int, of_decode: int) -> Iterator[tuple[int, int]]:
    """Numbers of workers of both roles that leave as few devices unused as possible: all numbers of the larger kind,
    with the rest for the smaller kind."""
    small, large = min(of_prefill, of_decode), max(of_prefill, of_decode)
    for num_large in spread((num_devices - small) // large):
        num_small = (num_devices - num_large * large) // small
        yield (num_large, num_small) if of_prefill >= of_decode else (num_small, num_large)


def spread(most: int) -> list[int]:
    """The numbers 1 to `most`, or MAX_SPLITS of them, evenly spread."""
    if most <= MAX_SPLITS:
        return list(range(1, most + 1))
    return sorted({round(1 + (most - 1) * step / (MAX_SPLITS - 1)) for step in range(MAX_SPLITS)})


def variations(best: DeploymentCandidate, policies: Sequence[PolicyName]) -> Iterator[DeploymentCandidate]:
    """Candidates that differ from `best` in one thing: the chunk, the policy, or a neighbouring split."""
    own = replace(best, chunk_tokens=None).chunk
    for factor in CHUNK_FACTORS:
        chunk = min(max(round(best.chunk * factor), MIN_CHUNK), best.decode.max_model_len)
        if chunk != best.chunk:
            yield replace(best, chunk_tokens=chunk if chunk != own else None)
    for policy in policies:
        if policy != best.policy:
            yield replace(best, policy=policy)
    if not best.is_colocated and devices(best.prefill) == devices(best.decode):
        for step in (-1, 1):
            split = Split(best.split.num_prefill + step, best.split.num_decode - step)
            if split.num_prefill >= 1 and split.num_decode >= 1:
                yield replace(best, split=split)
