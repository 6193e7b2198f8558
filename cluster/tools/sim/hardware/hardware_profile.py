"""What a worker is to the simulator: how large, how fast, how well connected. As JSON in `configs/profiles/`.

The times are those that the router fits from what workers tell (`router/registry/service_times.py`), so a profile of
real hardware is the fits of a running cluster, written down.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from slipstream.kv_transfer.api.ticket import PeerId, TransferAddress
from slipstream.router.protocol.messages import PROTOCOL_VERSION, Hello, Role, StepTime
from slipstream.workers.telemetry.step_profile import step_profile

FORMER_KEYS = ("prefill_share",)  # in files that were measured before


class ProfileError(Exception):
    """A profile that cannot be used: one sentence with file, key and reason."""


@dataclass(frozen=True, slots=True)
class WorkerRoleProfile:
    """A worker in one role. Seconds of an engine step:

    prompts   prefill_chunk_s + prefill_token_s x new tokens + prefill_pair_s x pairs of a new token and one before it
    step      the larger of decode_step_s (all weights are read once) and the prompts' seconds
              + decode_seq_s x sequences that decode + decode_context_token_s x tokens that these attend to
    """

    decode_step_s: float
    decode_seq_s: float
    decode_context_token_s: float
    prefill_chunk_s: float
    prefill_token_s: float
    prefill_pair_s: float
    max_slots: int
    max_step_tokens: int
    max_queued_tokens: int

    def __post_init__(self) -> None:
        _check(self)

    def timed(self, decode: Sequence[float], prefill: Sequence[float]) -> WorkerRoleProfile:
        """With other times, as `ServiceTimes` has them: of a step, a sequence, a token; of a chunk, a token, a pair."""
        step_s, seq_s, context_token_s = decode
        chunk_s, token_s, pair_s = prefill
        return replace(
            self,
            decode_step_s=step_s,
            decode_seq_s=seq_s,
            decode_context_token_s=context_token_s,
            prefill_chunk_s=chunk_s,
            prefill_token_s=token_s,
            prefill_pair_s=pair_s,
        )

    def decode_s(self, num_seqs: int, context_tokens: float) -> float:
        """A step that decodes only."""
        return self.decode_step_s + self.decode_seq_s * num_seqs + self.decode_context_token_s * context_tokens

    def step_s(self, num_seqs: int, context_tokens: float, chunk_tokens: int, pairs: float) -> float:
        """A step with so many tokens of prompts, which make so many pairs, and sequences that decode."""
        step_s = self.decode_step_s
        if chunk_tokens:
            step_s = max(
                step_s, self.prefill_chunk_s + self.prefill_token_s * chunk_tokens + self.prefill_pair_s * pairs
            )
        if num_seqs:
            step_s += self.decode_seq_s * num_seqs + self.decode_context_token_s * context_tokens
        return step_s

    def steps(self, hello: Hello) -> Iterator[StepTime]:
        """What a worker of this size times before its first request."""

        def seconds(num_seqs: int, num_tokens: int, context_tokens: int) -> float:
            if num_tokens > 1:
                return self.step_s(0, 0.0, num_tokens, num_tokens * (context_tokens + num_tokens / 2))
            return self.decode_s(num_seqs, num_seqs * (context_tokens + 1))

        return step_profile(hello, seconds)

    def prefill_s(self, num_tokens: int, num_cached: int = 0) -> float:
        """All chunks of a prompt of which `num_cached` tokens are cached, on a worker that does nothing else."""
        new = num_tokens - num_cached
        chunks = -(-new // self.max_step_tokens)
        pairs = new * (num_cached + 0.5 * new)
        prompt_s = self.prefill_chunk_s * chunks + self.prefill_token_s * new + self.prefill_pair_s * pairs
        return max(prompt_s, chunks * self.decode_step_s)


@dataclass(frozen=True, slots=True)
class WorkerProfile:
    """`source` says in a sentence where the numbers come from.

    A worker is one tensor-parallel group of `gpus` devices (0: none). Its pages reach others over a link of
    `link_bytes_per_s` with `link_latency_s`, which all transfers of its host share (`workers_per_host`).
    `message_s` is one way between router and worker, `client_s` what HTTP and tokenising take of a request, `start_s`
    from the decision to the first credits of a new worker, `role_switch_s` of one that changes its role. `noise` is the
    relative deviation of single steps. A transfer that stands still for `peer_timeout_s` is given up (as
    `kv_transfer.peer_timeout_s` of a real cluster).

    `hears_between_steps`: pages are reserved at the end of the step that is under way, as engines do.
    `model_swap_s`: from the end of its work for one model until a worker is ready for another one. `price_per_hour` is
    what a worker costs, in whichever currency; None: that is not known. `reserves_output`: decode workers take a
    sequence only with pages for all that it may come to have, and preempt none (`scheduler_policy: guaranteed_no_evict`
    of an engine).

    `shared_cores`: workers of a host compute on the same cores, as on a small machine. A prompt takes
    `prefill_beside_decode` times as long while somebody decodes there, and a decode step `decode_beside_prefill` times
    while somebody computes a prompt; two that do the same take twice as long each. Both factors together are more than
    a fair share of the cores comes to: threads that compute one product wait for the one that lost its core.
    """

    name: str
    source: str
    prefill: WorkerRoleProfile
    decode: WorkerRoleProfile
    page_tokens: int
    num_pages: int
    max_model_len: int
    num_layers: int
    kv_bytes_per_token: int
    link_bytes_per_s: float
    link_latency_s: float = 1e-3
    message_s: float = 2e-4
    client_s: float = 0.0
    start_s: float = 60.0
    role_switch_s: float = 2.0
    workers_per_host: int = 1
    gpus: int = 1
    noise: float = 0.0
    peer_timeout_s: float = 5.0
    hears_between_steps: bool = True
    shared_cores: bool = False
    prefill_beside_decode: float = 1.55
    decode_beside_prefill: float = 10.0
    model_swap_s: float = 5.0
    price_per_hour: float | None = None
    reserves_output: bool = False

    def __post_init__(self) -> None:
        _check(self)
        if self.link_bytes_per_s <= 0:
            raise ValueError(f"link_bytes_per_s must be over 0, got {self.link_bytes_per_s}")
        for key in ("prefill_beside_decode", "decode_beside_prefill"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, got {getattr(self, key)}")
        if self.price_per_hour is not None and not 0 <= self.price_per_hour <= MAX_VALUE:
            raise ValueError(f"price_per_hour must be from 0 to {MAX_VALUE:g}, got {self.price_per_hour!r:.40}")
        if self.noise > 1:
            raise ValueError(f"noise must be at most 1, got {self.noise}")

    def of(self, role: Role) -> WorkerRoleProfile:
        return self.prefill if role == "prefill" else self.decode

    def stretch(self, role: Role, others: Iterable[Role]) -> float:
        """How many times as long the steps of a worker take while workers of these roles compute on its cores."""
        beside_other = self.prefill_beside_decode if role == "prefill" else self.decode_beside_prefill
        return 1.0 + sum(1.0 if other == role else beside_other - 1.0 for other in others)

    @property
    def capacity_tokens(self) -> int:
        """That fit into the KV cache."""
        return self.num_pages * self.page_tokens

    def hello(self, worker: PeerId, role: Role, host: int, page_tokens: int, prefix_caching: bool) -> Hello:
        """What a simulated worker says of itself. Its address is its host's number."""
        of_role = self.of(role)
        return Hello(
            version=PROTOCOL_VERSION,
            token="",
            worker=worker,
            role=role,
            model=self.name,
            tp=1,
            pid=1,
            addresses=(TransferAddress(f"host{host}", 1),),
            page_tokens=page_tokens,
            num_pages=max(self.capacity_tokens // page_tokens, 1),
            max_slots=of_role.max_slots,
            max_queued_tokens=of_role.max_queued_tokens,
            max_model_len=self.max_model_len,
            max_step_tokens=of_role.max_step_tokens,
            prefix_caching=prefix_caching,
            reserves_output=self.reserves_output and role == "decode",
        )

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> WorkerProfile:
        """The inverse of `asdict`, for profiles of before, too. Raises ProfileError that names the key."""
        if not isinstance(values, Mapping):
            raise ProfileError("a profile is an object")
        values = {key: value for key, value in values.items() if key not in FORMER_KEYS}
        roles = {}
        for role in ("prefill", "decode"):
            part = values.get(role)
            if not isinstance(part, Mapping):
                raise ProfileError(f"{role}: an object was expected, got {part!r}")
            roles[role] = _made(WorkerRoleProfile, part, f"{role}.")
        made: WorkerProfile = _made(cls, {**values, **roles}, "")
        return made

    @classmethod
    def read(cls, path: Path) -> WorkerProfile:
        """Raises ProfileError that names file and key."""
        try:
            return cls.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise ProfileError(f"{path}: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise ProfileError(f"{path}: not JSON: {error}") from None
        except ProfileError as error:
            raise ProfileError(f"{path}: {error}") from None

    def write(self, path: Path) -> None:
        path.write_text(self.to_json(), encoding="utf-8")


_ZERO_ALLOWED = ("gpus",)
MAX_VALUE = 1e18  # of seconds, bytes and counts alike: beyond, sums of them are none


def _check(profile: WorkerRoleProfile | WorkerProfile) -> None:
    for field in fields(profile):
        value = getattr(profile, field.name)
        if field.type == "float":
            if not 0 <= value <= MAX_VALUE:
                raise ValueError(f"{field.name} must be a number from 0 to {MAX_VALUE:g}, got {value!r:.40}")
        elif field.type == "int":
            least = 0 if field.name in _ZERO_ALLOWED else 1
            if not least <= value <= MAX_VALUE:
                raise ValueError(f"{field.name} must be {least} to {MAX_VALUE:g}, got {value!r:.40}")


_TYPES: dict[str, type | tuple[type, ...]] = {
    "float": (int, float),
    "float | None": (int, float, type(None)),
    "int": int,
    "str": str,
    "bool": bool,
}


def _made(cls: type[Any], values: Mapping[str, Any], where: str) -> Any:
    known = {field.name: field for field in fields(cls)}
    for key, value in values.items():
        if key not in known:
            raise ProfileError(f"{where}{key}: there is no such key")
        wanted = _TYPES.get(str(known[key].type))
        if wanted is not None and (not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool)):
            raise ProfileError(f"{where}{key}: {known[key].type} was expected, got {value!r}")
    try:
        return cls(**values)
    except TypeError as error:
        missing = [name for name in known if name not in values and f"'{name}'" in str(error)]
        raise ProfileError(f"{where}{missing[0] if missing else ''}: is missing") from None
    except ValueError as error:
        raise ProfileError(f"{where}{error}") from None
