"""Settings of a model repository: tensor models in Triton's layout, and how they are loaded and served."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from slipstream.router.config.endpoints_config import EndpointsConfig
from slipstream.router.config.instance_counts_config import InstanceCountsConfig
from slipstream.router.config.kserve_config import KServeGrpcConfig, KServeHttpConfig, TensorMetricsConfig
from slipstream.router.config.tensor_versions_config import TensorVersionsConfig

ControlMode = Literal["none", "explicit", "poll"]
ALL_MODELS = "*"
MAX_HOSTS = 64


@dataclass(frozen=True, slots=True)
class RateLimitResource:
    """`count` copies of a resource of the rate limiter, on one device or, with `device` null, on each."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    name: str
    count: int
    device: str | None = None  # the number of a GPU, or "global"

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name must not be empty")
        if self.count < 0:
            raise ValueError(f"count must not be negative, got {self.count}")


@dataclass(frozen=True, slots=True)
class RepositoryConfig:
    """Repositories of tensor models in Triton's layout, served with KServe v2. `paths` are folders, or addresses of
    folders as those of models (s3://, gs://, az://, hf://); empty: no repository. Relative paths are relative to the
    deployment's file.

    `control_mode` none: all models are loaded at the start; explicit: `load_models` ("*": all), then what clients ask
    for; poll: the repositories are read again every `poll_s`. `hosts` is how many nodes run instances.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    paths: tuple[str, ...] = ()
    control_mode: ControlMode = "none"
    load_models: tuple[str, ...] = ()
    poll_s: float = 15.0
    config_name: str = ""  # configs/NAME.pbtxt of a model is used instead of its config.pbtxt, if there is one
    auto_complete: bool = True
    strict_readiness: bool = True  # a model that has failed makes the server unready
    exit_on_error: bool = True  # in mode none: a model that cannot be loaded at the start ends the cluster
    load_threads: int = 4  # models that are loaded at the same time
    load_retries: int = 0
    request_retries: int = 1  # of a stateless request whose instance died
    hosts: int = 1
    num_gpus: int = 0  # that Ray reserves on each host; 0: instances see all GPUs
    instance_port: int = 0  # where instances on other nodes connect to; 0: any free port
    download_folder: str | None = None  # of repositories that are elsewhere; null: that of a cluster's model_cache
    download_max_gib: float | None = None  # how large it may grow; null: as model_cache says, or without limit
    cache_bytes: int = 0  # of the response cache; 0: none
    shared_memory_mib: int | None = None  # of large tensors on their way; null: as the machine allows
    rate_limit: Literal["off", "execution_count", False] = "off"  # False is what YAML makes of a bare `off`
    rate_limit_resources: tuple[RateLimitResource, ...] = ()
    # Backend -> setting -> value, as Triton's --backend-config. The backend "" has settings for all.
    backend_config: dict[str, dict[str, str]] = field(default_factory=dict)
    backend_directory: str | None = None  # a folder with a folder for each further backend
    # Model -> how its requests are divided between its versions. Others go to the highest version.
    versions: dict[str, TensorVersionsConfig] = field(default_factory=dict)
    # Model -> how many instances it has, where that is not as its configuration says.
    instances: dict[str, InstanceCountsConfig] = field(default_factory=dict)
    max_instances: int | None = None  # of all models that grow and shrink; null: as many as their bounds allow
    # Model of the repository -> the language model that answers for it: the name of one of the cluster, or a path.
    language_models: dict[str, str] = field(default_factory=dict)
    server_id: str = "triton"  # the name in the metadata of the server
    log_verbose: int = 0
    trace: dict[str, str] = field(default_factory=dict)  # settings at the start, named as in the trace extension
    endpoints: EndpointsConfig = field(default_factory=EndpointsConfig)
    http: KServeHttpConfig = field(default_factory=KServeHttpConfig)
    grpc: KServeGrpcConfig = field(default_factory=KServeGrpcConfig)
    metrics: TensorMetricsConfig = field(default_factory=TensorMetricsConfig)

    @property
    def shared_memory_bytes(self) -> int | None:
        return None if self.shared_memory_mib is None else self.shared_memory_mib << 20

    @property
    def is_on(self) -> bool:
        return bool(self.paths)

    def __post_init__(self) -> None:
        if self.rate_limit is False:
            object.__setattr__(self, "rate_limit", "off")
        if "" in self.paths:
            raise ValueError("paths must not have an empty path")
        if self.endpoints.is_on and not self.paths:
            raise ValueError("endpoints needs paths with the models that they stand for")
        if self.load_models and self.control_mode != "explicit":
            raise ValueError(f"load_models needs control_mode explicit, got {self.control_mode}")
        if ALL_MODELS in self.load_models and len(self.load_models) > 1:
            raise ValueError(f"load_models must not name others beside {ALL_MODELS!r}, got {list(self.load_models)}")
        if not 0 < self.poll_s < float("inf"):
            raise ValueError(f"poll_s must be over 0 and finite, got {self.poll_s}")
        if "/" in self.config_name:
            raise ValueError(f"config_name must be a name without folders, got {self.config_name!r}")
        for key, lowest in (
            ("load_threads", 1),
            ("load_retries", 0),
            ("request_retries", 0),
            ("num_gpus", 0),
            ("cache_bytes", 0),
        ):
            if getattr(self, key) < lowest:
                raise ValueError(f"{key} must be at least {lowest}, got {getattr(self, key)}")
        if not 1 <= self.hosts <= MAX_HOSTS:
            raise ValueError(f"hosts must be 1 to {MAX_HOSTS}, got {self.hosts}")
        if not 0 <= self.instance_port < 65536:
            raise ValueError(f"instance_port must be a port number (0: a free one), got {self.instance_port}")
        if self.download_folder == "":
            raise ValueError("download_folder must name a folder or be null, got ''")
        if self.backend_directory == "":
            raise ValueError("backend_directory must name a folder or be null, got ''")
        if self.download_max_gib is not None and not 0 < self.download_max_gib < float("inf"):
            raise ValueError(f"download_max_gib must be over 0 and finite, or null, got {self.download_max_gib}")
        if self.shared_memory_mib is not None and self.shared_memory_mib < 1:
            raise ValueError(f"shared_memory_mib must be at least 1, or null, got {self.shared_memory_mib}")
        if self.max_instances is not None and self.max_instances < 1:
            raise ValueError(f"max_instances must be at least 1, or null, got {self.max_instances}")
        if self.log_verbose < 0:
            raise ValueError(f"log_verbose must not be negative, got {self.log_verbose}")
