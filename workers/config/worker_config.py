"""Settings of one worker group and its engine. Plain dataclasses: no dependency beyond the standard library."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from slipstream.kv_transfer.api.transfer_config import TransferConfig
from slipstream.router.model_files.manifest import Manifest
from slipstream.router.protocol.messages import Role
from slipstream.router.tls.link_tls import LinkTlsConfig
from slipstream.workers.models.directory.model_spec import ModelImpl
from slipstream.workers.models.directory.stored_quantization import KvCacheDtype, OnLoad

# TensorRT-LLM's words: running sequences may be preempted when pages run out, or each has room for its whole answer.
SchedulerPolicy = Literal["max_utilization", "guaranteed_no_evict"]
MOST_STEP_TOKENS, MOST_NUM_SEQS = 2048, 256  # of steps and engines that are sized by the ITL level
MAX_PROCESSORS = 64
PROCESSOR_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
PROCESSOR_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
MAX_THREADS = 1024  # more than any host has cores; torch would try to start any number


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """`kv_cache_mib` is the memory of one rank's KV pages; `auto` takes half of what is free on the host (divided by
    the ranks there), or 0.9 of a GPU's memory, after the weights, but no more than `max_num_seqs` sequences of full
    length can fill. `num_pages` wins over it. `max_step_tokens` is the chunk budget of a step: prompts longer than
    what decoding leaves of it are computed in several steps. `page_tokens` = 16 is vLLM's default block size.
    Where `max_step_tokens` or `max_num_seqs` is `auto`, it is set while the engine serves, by the ITL level that the
    router tells, up to `most_step_tokens` and `most_num_seqs`.

    `scheduler_policy: max_utilization` admits a sequence when there are pages for the tokens that are known, and
    preempts when pages run out. With `guaranteed_no_evict` the pages for a prompt and the most output that its request
    may have are set aside before it is admitted, reserved for or adopted, and nothing is ever preempted.

    `cpu_kernels: off` computes with torch where native kernels would serve. `weight_cache_dir` is where the native
    kernels keep weights in the form they read, for all workers of a host to share: `auto` is `slipstream` in the
    user's cache directory, null keeps them in each worker's own memory.

    `quantization` rounds the linear layers of a model that is not quantised already while it is loaded: to fp8 or int8
    with a scale an output, or to 4 bits with a scale for every 128 inputs of an output. `kv_cache_dtype` keeps keys and
    values in eight bits, with a scale a token and head; it must be the same wherever pages travel.

    `model_impl` is whose code computes the model: `native` is this project's, for the families that it has, and
    `transformers` that of the library, for all others; `auto` takes the native one where there is one.

    `expert_parallel` deals out whole experts to the ranks of a group; otherwise each rank has a part of every expert.

    `logits_processors` are functions that requests may choose by these names, each as `package.module:function`.

    `niceness` (0 to 19) is how far the threads that compute stand back for others on the same cores (nice(2)): `auto`
    is 0 for prefill and 5 for decode on CPU, so that decoding a few sequences does not halve the speed of prefill.
    Where `num_threads` leaves each rank on the host cores of its own, it is 0 for both."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    page_tokens: int = 16
    kv_cache_mib: int | Literal["auto"] = 256
    num_pages: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | Literal["auto"] = 64
    max_step_tokens: int | Literal["auto"] = 512
    prefix_caching: bool = True
    scheduler_policy: SchedulerPolicy = "max_utilization"
    num_threads: int | None = None
    niceness: int | Literal["auto"] = "auto"
    cpu_kernels: Literal["auto", "off", False] = "auto"  # False is what YAML makes of a bare `off`
    weight_cache_dir: str | None = "auto"
    quantization: OnLoad = "none"
    kv_cache_dtype: KvCacheDtype = "auto"
    model_impl: ModelImpl = "auto"
    expert_parallel: bool = False
    logits_processors: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.page_tokens < 1:
            raise ValueError(f"page_tokens must be at least 1, got {self.page_tokens}")
        for key in ("max_num_seqs", "max_step_tokens"):
            value = getattr(self, key)
            if value != "auto" and value < 1:
                raise ValueError(f"{key} must be auto or at least 1, got {value}")
        if self.kv_cache_mib != "auto" and self.kv_cache_mib < 1:
            raise ValueError(f"kv_cache_mib must be auto or at least 1, got {self.kv_cache_mib}")
        for key in ("num_pages", "max_model_len", "num_threads"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ValueError(f"{key} must be at least 1 or null, got {value}")
        if (self.num_threads or 0) > MAX_THREADS:
            raise ValueError(f"num_threads must be at most {MAX_THREADS}, got {self.num_threads}")
        if self.niceness != "auto" and not 0 <= self.niceness <= 19:
            raise ValueError(f"niceness must be auto or 0 to 19, got {self.niceness}")
        if self.cpu_kernels is False:
            object.__setattr__(self, "cpu_kernels", "off")
        if len(self.logits_processors) > MAX_PROCESSORS:
            raise ValueError(f"logits_processors may be at most {MAX_PROCESSORS}, got {len(self.logits_processors)}")
        for name, target in self.logits_processors.items():
            if not PROCESSOR_NAME.fullmatch(name):
                raise ValueError(f"logits_processors: a name has up to 64 letters, digits, _, . and -, got {name!r}")
            if not PROCESSOR_TARGET.fullmatch(target):
                raise ValueError(f"logits_processors.{name} must be package.module:function, got {target!r}")
        if self.weight_cache_dir == "":
            raise ValueError("weight_cache_dir must be a directory, auto or null, got ''")

    @property
    def most_step_tokens(self) -> int:
        """The most tokens that a step ever computes."""
        return MOST_STEP_TOKENS if self.max_step_tokens == "auto" else self.max_step_tokens

    @property
    def most_num_seqs(self) -> int:
        """The most sequences that ever run at the same time."""
        return MOST_NUM_SEQS if self.max_num_seqs == "auto" else self.max_num_seqs


@dataclass(frozen=True, slots=True)
class RoleSettings:
    """The settings of the other role that a worker takes over when it changes to that role."""

    max_queued_tokens: int
    engine: EngineConfig


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """One worker group: `tp` ranks that serve one copy of the model in one role.

    `model` is the name that clients ask for, `model_dir` a local directory in Hugging Face layout. `router_host` and
    `router_port` say where the router's worker port listens, `token` is the secret it expects. `max_queued_tokens`
    is what a prefill group accepts beyond what it computes (uncomputed prompt tokens). `host` is the address by
    which the other ranks of a group reach this one. `ranks_on_host` divides the cores of the machine where
    `engine.num_threads` is not given. `drain_s` bounds how long a drain waits for what is running. A worker whose
    engine is stuck in one step for `stall_s` ends with an error; a step takes at most seconds where all is well. With
    a `manifest`, a worker that finds other files in `model_dir` refuses to load them.

    `kv_budget_bytes` is the host memory that the KV pages of all workers on this host may take together. With it, a
    worker's pool may grow to all of that, takes no memory before the router allows it some, and returns what the router
    wants back (`kv_cache_mib` then says nothing). A pool on a GPU is not affected. `weight_memory_bytes` bounds what
    the host keeps in memory of packed weights in `engine.weight_cache_dir` (see `keep_recent`). With
    `trust_remote_code`, code in `model_dir` may be run, where transformers has none for the model.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    name: str
    role: Role
    model: str
    model_dir: str
    router_host: str
    router_port: int
    token: str = ""
    router_tls: LinkTlsConfig = field(default_factory=LinkTlsConfig)
    tp: int = 1
    max_queued_tokens: int = 8192
    host: str = "127.0.0.1"
    ranks_on_host: int = 1
    drain_s: float = 60.0
    stall_s: float = 120.0
    engine: EngineConfig = field(default_factory=EngineConfig)
    other_role: RoleSettings | None = None  # None: the settings are the same in both roles
    transfer: TransferConfig = field(default_factory=TransferConfig)
    model_version: str = ""  # tells one rollout of a model from the next; the same for prefill and decode
    manifest: Manifest | None = None  # of this version; None: what is in `model_dir` is served, unchecked
    kv_budget_bytes: int | None = None
    weight_memory_bytes: int | None = None
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name must not be empty")
        for key in ("tp", "max_queued_tokens", "ranks_on_host"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} must be at least 1, got {getattr(self, key)}")
        if not 0 < self.router_port < 65536:
            raise ValueError(f"router_port must be a port number, got {self.router_port}")
        if self.kv_budget_bytes is not None and self.kv_budget_bytes < 1:
            raise ValueError(f"kv_budget_bytes must be at least 1 or null, got {self.kv_budget_bytes}")
        if self.drain_s < 0:
            raise ValueError(f"drain_s must not be negative, got {self.drain_s}")
        if self.stall_s <= 0:
            raise ValueError(f"stall_s must be positive, got {self.stall_s}")

    def in_role(self, role: Role) -> WorkerConfig:
        """The settings of the same worker in another role. Whatever that role's settings say, what was set up when the
        worker started stays as it is: weights, pages, threads."""
        if role == self.role:
            return self
        ours = RoleSettings(self.max_queued_tokens, self.engine)
        theirs = self.other_role or ours
        engine = replace(
            self.engine,
            max_model_len=theirs.engine.max_model_len,
            max_num_seqs=theirs.engine.max_num_seqs,
            max_step_tokens=theirs.engine.max_step_tokens,
            scheduler_policy=theirs.engine.scheduler_policy,
            niceness=theirs.engine.niceness,
        )
        return replace(self, role=role, max_queued_tokens=theirs.max_queued_tokens, engine=engine, other_role=ours)
