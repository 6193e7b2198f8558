"""The messages between the router and instance hosts, and the first one of an instance, as data and as heads."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

from slipstream.router.instances.frames.frame_reader import FrameError, Json
from slipstream.router.instances.messages import PROTOCOL, InstanceEnd, StartInstance
from slipstream.router.machine.gpu_reader import GpuReading

GPU_FIGURES = tuple(entry.name for entry in dataclasses.fields(GpuReading) if entry.name != "uuid")
START_FIELDS = tuple(entry.name for entry in dataclasses.fields(StartInstance))


@dataclass(frozen=True, slots=True)
class HostHello:
    """`running` are the instances whose end the router does not know."""

    token: str = field(repr=False)
    name: str
    node_ip: str
    memory_id: str
    pid: int
    running: tuple[StartInstance, ...] = ()
    protocol: int = PROTOCOL


@dataclass(frozen=True, slots=True)
class HostWelcome:
    """`address` is for instances: `unix:PATH` or `HOST:PORT`. Each router has a higher `epoch` than those before it.
    `usage_s`: how often it wants a `usage`; 0: never, as routers before this field."""

    address: str
    epoch: int
    usage_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    """What the process of a launch takes ("": that of the host): seconds of processors since it began, memory now."""

    launch: str
    cpu_seconds: float
    resident_memory_bytes: int


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Of the processes of a host by launch, and of the GPUs of its machine."""

    processes: Mapping[str, ProcessUsage] = field(default_factory=dict)
    gpus: tuple[GpuReading, ...] = ()


@dataclass(frozen=True, slots=True)
class InstanceHello:
    """`is_ready`: the model is initialised; the router was lost."""

    launch: str
    secret: str = field(repr=False)
    pid: int
    memory_id: str
    is_ready: bool
    protocol: int = PROTOCOL


def instance_secret(token: str, launch: str) -> str:
    """By which an instance shows that a host has started it. Any router of the cluster can compute it."""
    return hmac.new(token.encode(), launch.encode(), hashlib.sha256).hexdigest()


def host_hello_head(hello: HostHello) -> Json:
    return {
        "type": "host_hello",
        "protocol": hello.protocol,
        "token": hello.token,
        "name": hello.name,
        "node_ip": hello.node_ip,
        "memory_id": hello.memory_id,
        "pid": hello.pid,
        "launches": [start_fields(start) for start in hello.running],
    }


def host_hello(head: Json) -> HostHello:
    """Raises FrameError."""
    try:
        running = tuple(start_instance(fields) for fields in head["launches"])
        return HostHello(
            _text(head, "token"),
            _text(head, "name"),
            _text(head, "node_ip"),
            _text(head, "memory_id"),
            head["pid"],
            running,
            head["protocol"],
        )
    except (KeyError, TypeError) as error:
        raise FrameError(f"a bad host_hello: {error!r}") from error


def _text(head: Json, name: str) -> str:
    """Raises KeyError or TypeError."""
    value = head[name]
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text, got {value!r}")
    return value


def host_welcome_head(welcome: HostWelcome) -> Json:
    return {
        "type": "host_welcome",
        "address": welcome.address,
        "epoch": welcome.epoch,
        "usage_s": welcome.usage_s,
    }


def host_welcome(head: Json) -> HostWelcome:
    """Raises FrameError."""
    try:
        return HostWelcome(head["address"], head["epoch"], float(head.get("usage_s", 0.0)))
    except (KeyError, TypeError, ValueError) as error:
        raise FrameError(f"a bad host_welcome: {error!r}") from error


def usage_head(report: UsageReport) -> Json:
    processes = [[one.launch, one.cpu_seconds, one.resident_memory_bytes] for one in report.processes.values()]
    return {"type": "usage", "processes": processes, "gpus": [dataclasses.asdict(gpu) for gpu in report.gpus]}


def usage_of(head: Json) -> UsageReport:
    """Fields of GPUs of a later version are ignored. Raises FrameError."""
    try:
        processes = [ProcessUsage(str(one), float(cpu_s), int(memory)) for one, cpu_s, memory in head["processes"]]
        gpus = tuple(_gpu(shown) for shown in head["gpus"])
    except (KeyError, TypeError, ValueError) as error:
        raise FrameError(f"a bad usage: {error!r}") from error
    return UsageReport({one.launch: one for one in processes}, gpus)


def _gpu(shown: Json) -> GpuReading:
    """Raises KeyError or TypeError."""
    figures = {name: shown[name] for name in GPU_FIGURES if shown.get(name) is not None}
    for name, figure in figures.items():
        if not isinstance(figure, int | float):
            raise TypeError(f"{name} must be a number, got {figure!r}")
    return GpuReading(_text(shown, "uuid"), **figures)


def instance_hello(head: Json) -> InstanceHello:
    """Raises FrameError."""
    try:
        is_ready = head["state"] == "ready"
        launch, secret, memory_id = (_text(head, name) for name in ("launch", "secret", "memory_id"))
        return InstanceHello(launch, secret, head["pid"], memory_id, is_ready, head["protocol"])
    except (KeyError, TypeError) as error:
        raise FrameError(f"a bad hello: {error!r}") from error


def start_fields(start: StartInstance) -> Json:
    return {name: getattr(start, name) for name in START_FIELDS}


def start_instance(fields: Json) -> StartInstance:
    """Raises KeyError or TypeError. Fields of a later version are ignored."""
    return StartInstance(**{name: fields[name] for name in START_FIELDS if name in fields})


def end_head(launch: str, end: InstanceEnd) -> Json:
    """`exited`, or `start_failed` where there was no process."""
    if end.returncode is None:
        return {"type": "start_failed", "launch": launch, "error": end.reason}
    return {
        "type": "exited",
        "launch": launch,
        "returncode": end.returncode,
        "reason": end.reason,
        "log_tail": end.log_tail,
    }


def instance_end(head: Json) -> tuple[str, InstanceEnd]:
    """The launch and its end. Raises FrameError."""
    try:
        if head["type"] == "start_failed":
            return head["launch"], InstanceEnd(head["error"])
        return head["launch"], InstanceEnd(head["reason"], head["returncode"], head["log_tail"])
    except KeyError as error:
        raise FrameError(f"a bad {head['type']}: {error!r}") from error
