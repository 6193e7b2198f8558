"""The settings of the trace extension, of the server and of single models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from slipstream.router.api.kserve.json_fields import as_list, as_text
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.infer_service import TraceSettings

LEVELS = ("TIMESTAMPS", "TENSORS")
OFF = "OFF"
CHANGEABLE = ("trace_level", "trace_rate", "trace_count", "log_frequency")
MIN_COUNT = -1  # without end
MAX_INT32, MAX_UINT32 = (1 << 31) - 1, (1 << 32) - 1
LEADING_NUMBER = re.compile(r"\s*([+-]?\d+)")
NO_FILE = "Attempting to set invalid trace setting :trace file name is not given"


@dataclass(frozen=True, slots=True)
class TraceSetting:
    """None: as the server's, or, of the server, as at its start."""

    levels: tuple[str, ...] | None = None
    rate: int | None = None
    count: int | None = None
    log_frequency: int | None = None


@dataclass(frozen=True, slots=True)
class ActiveTracing:
    """What holds for a model: one request in `rate` is traced at `levels`, `count` in all if that is not negative."""

    levels: tuple[str, ...] = ()
    rate: int = 1000
    count: int = -1
    log_frequency: int = 0

    def with_changes(self, setting: TraceSetting) -> ActiveTracing:
        changes = {field.name: getattr(setting, field.name) for field in fields(setting)}
        return replace(self, **{name: value for name, value in changes.items() if value is not None})


class TraceControl:
    """`file` is where traces go; only the start of the server sets it, and without it no level can be set."""

    def __init__(self, start: ActiveTracing | None = None, file: str = "", mode: str = "triton") -> None:
        self._start = start or ActiveTracing()
        self.file = file
        self._mode = mode
        self._server = TraceSetting()
        self._models: dict[str, TraceSetting] = {}
        self._active: dict[str, ActiveTracing] = {}  # of models that were asked for since the last change
        self._num_seen: dict[str, int] = {}  # requests of each model since its settings have changed
        self._num_taken: dict[str, int] = {}

    @classmethod
    def of_settings(cls, settings: Mapping[str, str]) -> TraceControl:
        """Of the settings that a server starts with, named as in the extension; several levels are separated by commas.
        Raises ValueError."""
        given = {name: value for name, value in settings.items() if name in CHANGEABLE}
        levels = {} if "trace_level" not in given else {"trace_level": given["trace_level"].split(",")}
        file, mode = settings.get("trace_file", ""), settings.get("trace_mode", "triton")
        try:
            setting = changed(TraceSetting(), {**given, **levels}, has_file=bool(file))
        except InferError as error:
            raise ValueError(f"repository.trace: {error.message}") from error
        return cls(ActiveTracing().with_changes(setting), file, mode)

    def active(self, model: str = "") -> ActiveTracing:
        """What holds for a model, or, without a name, for those that have no settings of their own."""
        active = self._active.get(model)
        if active is None:
            active = self._start.with_changes(self._server).with_changes(self._models.get(model, TraceSetting()))
            self._active[model] = active
        return active

    def takes(self, model: str) -> bool:
        """Whether the request that begins now is traced."""
        active = self.active(model)
        if not active.levels or active.rate < 1:
            return False
        num_seen = self._num_seen[model] = self._num_seen.get(model, 0) + 1
        num_taken = self._num_taken.get(model, 0)
        if num_seen % active.rate or 0 <= active.count <= num_taken:
            return False
        self._num_taken[model] = num_taken + 1
        return True

    def shown(self, model: str = "") -> TraceSettings:
        """All settings as the protocols show them: lists of texts, of which all but the levels have one."""
        active = self.active(model)
        shown = {
            "trace_level": list(active.levels) or [OFF],
            "trace_rate": [str(active.rate)],
            "trace_count": [str(active.count)],
        }
        if self._mode == "triton":
            shown |= {"log_frequency": [str(active.log_frequency)], "trace_file": [self.file]}
        return shown | {"trace_mode": [self._mode]}

    def changes(self) -> dict[str, dict[str, object]]:
        """What `update` is to be given to make of the settings of the start what holds now: of the server (""), and of
        models."""
        settings = {"": self._server, **self._models}
        return {model: fields_of(setting) for model, setting in settings.items() if setting != TraceSetting()}

    def update(self, given: Mapping[str, object], model: str = "") -> None:
        """Changes what `given` names: a list of levels, a number as a text, or None for what it was. Other names are
        ignored. Raises InferError and changes nothing."""
        if "trace_file" in given:
            message = "trace file location can not be updated through network protocol"
            raise InferError(message, InferErrorCode.UNSUPPORTED)
        setting = self._models.get(model, TraceSetting()) if model else self._server
        setting = changed(setting, given, has_file=bool(self.file))
        if model:
            self._models[model] = setting
        else:
            self._server = setting
        self._active.clear()
        self._num_seen.clear()
        self._num_taken.clear()


def changed(setting: TraceSetting, given: Mapping[str, object], *, has_file: bool) -> TraceSetting:
    """`setting` with what `given` names. Raises InferError."""
    if "trace_level" in given:
        value = given["trace_level"]
        setting = replace(setting, levels=None if value is None else _levels(value, setting.levels, has_file=has_file))
    if "trace_rate" in given:
        setting = replace(setting, rate=_unsigned("trace_rate", given["trace_rate"]))
    if "trace_count" in given:
        setting = replace(setting, count=_count(given["trace_count"]))
    if "log_frequency" in given:
        setting = replace(setting, log_frequency=_unsigned("log_frequency", given["log_frequency"]))
    return setting


def fields_of(setting: TraceSetting) -> dict[str, object]:
    """A setting as in the extension, without what is not set."""
    given: dict[str, object] = {} if setting.levels is None else {"trace_level": list(setting.levels) or [OFF]}
    numbers = {"trace_rate": setting.rate, "trace_count": setting.count, "log_frequency": setting.log_frequency}
    return given | {name: str(number) for name, number in numbers.items() if number is not None}


def _levels(value: object, before: tuple[str, ...] | None, *, has_file: bool) -> tuple[str, ...] | None:
    names = [as_text(name) for name in as_list(value)]
    if OFF in names:
        if len(names) > 1:
            raise InferError("Expect only one trace level 'OFF' is specified")
        return ()
    levels = tuple(level for level in LEVELS if level in names)
    if levels and not has_file:
        raise InferError(NO_FILE)
    return levels or before  # unknown ones change nothing


def _number(name: str, value: object, lowest: int, highest: int) -> int | None:
    """The number that a text begins with, as `stoi` reads it; None for None. Raises InferError."""
    if value is None:
        return None
    text = as_text(value)
    match = LEADING_NUMBER.match(text)
    if match is None:
        raise InferError(f"Unable to parse '{name}', got: {text}")
    number = int(match[1])
    if not -MAX_INT32 - 1 <= number <= MAX_INT32:
        limits = f"[ {lowest}, {highest} ]"
        raise InferError(f"Unable to parse '{name}', value is out of range {limits}, got: {text}")
    return number


def _unsigned(name: str, value: object) -> int | None:
    number = _number(name, value, 0, MAX_UINT32)
    return None if number is None else number & MAX_UINT32


def _count(value: object) -> int | None:
    number = _number("trace_count", value, MIN_COUNT, MAX_INT32)
    if number is not None and number < MIN_COUNT:
        raise InferError(f"Unable to parse 'trace_count'. Expecting value >= {MIN_COUNT}, got:{as_text(value)}")
    return number
