"""With which properties OpenVINO computes, from the parameters of a configuration.

The parameters are those of Triton's backend; where that has renamed one, both names count.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.workers.backends.backend import BackendError, ModelContext
from slipstream.workers.backends.model_settings import default_threads, whole_number

YES_OR_NO = {"yes": True, "true": True, "no": False, "false": False}
HINTS = ("LATENCY", "THROUGHPUT", "CUMULATIVE_THROUGHPUT")


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """`extension` is the path of a library with operators ("": none)."""

    properties: dict[str, str] = field(default_factory=dict)
    extension: str = ""

    @classmethod
    def of(cls, model: ModelContext) -> DeviceSettings:
        """One stream, as each instance has one batch at a time, and no threads bound to cores, as the instances of a
        model would be bound to the same ones. Raises BackendError."""
        threads = number(model, "INFERENCE_NUM_THREADS", "CPU_THREADS_NUM") or default_threads(model)
        properties = {
            "INFERENCE_NUM_THREADS": str(threads),
            "NUM_STREAMS": streams(model),
            "PERFORMANCE_HINT": performance_hint(model),
            "ENABLE_CPU_PINNING": "YES" if is_on(model, "CPU_BIND_THREAD", default=False) else "NO",
        }
        if given(model, "HINT_BF16", "ENFORCE_BF16")[1]:
            is_bfloat = is_on(model, "HINT_BF16", "ENFORCE_BF16", default=False)
            properties["INFERENCE_PRECISION_HINT"] = "bf16" if is_bfloat else "f32"
        return cls(properties, model.parameters.get("CPU_EXTENSION_PATH", ""))


def skips_dynamic_batches(model: ModelContext) -> bool:
    """The model is given batches of the size only that its file has. Raises BackendError."""
    return is_on(model, "SKIP_OV_DYNAMIC_BATCHSIZE", "SKIP_DYNAMIC_BATCHSIZE", default=False)


def pads_batches(model: ModelContext) -> bool:
    """Smaller batches are filled up with rows of zeros. Raises BackendError."""
    return is_on(model, "ENABLE_BATCH_PADDING", default=False)


def streams(model: ModelContext) -> str:
    name, text = given(model, "NUM_STREAMS", "CPU_THROUGHPUT_STREAMS")
    if text.upper() in ("AUTO", "NUMA"):
        return text.upper()
    return str(whole_number(model, name, text) or 1)


def performance_hint(model: ModelContext) -> str:
    name, text = given(model, "PERFORMANCE_HINT")
    hint = text.upper() or HINTS[0]
    if hint not in HINTS:
        raise refused(name, f"one of {', '.join(HINTS)}", text)
    return hint


def number(model: ModelContext, *names: str) -> int:
    """0: none was given."""
    name, text = given(model, *names)
    if text and not text.isdecimal():
        raise refused(name, "a non-negative number", text)
    return int(text or 0)


def is_on(model: ModelContext, *names: str, default: bool) -> bool:
    name, text = given(model, *names)
    if not text:
        return default
    if text.lower() not in YES_OR_NO:
        raise refused(name, "either YES or NO", text)
    return YES_OR_NO[text.lower()]


def given(model: ModelContext, *names: str) -> tuple[str, str]:
    """The first parameter of these that there is, and its value; "": there is none."""
    found = ((name, model.parameters[name]) for name in names if model.parameters.get(name))
    return next(found, (names[0], ""))


def refused(name: str, expected: str, text: str) -> BackendError:
    return BackendError(f"expected the parameter '{name}' to be {expected}, got {text}", "INVALID_ARG")
