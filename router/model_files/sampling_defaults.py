"""The sampling of requests that do not say how to sample: what generation_config.json recommends for the model.

The keys are those that vLLM uses with `--generation-config auto`. `max_new_tokens` is, as there, a limit for every
request. `do_sample` is not looked at, as there: a file that means greedy sampling says `temperature: 0`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from slipstream.router.model_files.json_file import is_there, parse_json, shortened, why_no_file

GENERATION_FILE = "generation_config.json"
GenerationConfigUse = Literal["auto", "none"]
INT32_MAX = 2**31 - 1


class GenerationConfigError(ValueError):
    """generation_config.json cannot be used. The text is a sentence that names file, key and value."""


class Rule(NamedTuple):
    """Which values a key may have: the same as the field of a request."""

    accepted: str
    accepts: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """Values of a request's fields that it leaves out; without a recommendation those of OpenAI and, for vLLM's fields,
    those that change nothing. `max_new_tokens` bounds every output; None: it does not."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all tokens
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int | None = None

    @classmethod
    def read(cls, model_dir: Path, use: GenerationConfigUse = "auto") -> SamplingDefaults:
        """Those of a model directory; with `use` "none", or without the file, the plain ones. Raises
        GenerationConfigError."""
        path = model_dir / GENERATION_FILE
        if use == "none" or not is_there(path):
            return cls()
        if (problem := why_no_file(path)) is not None:
            raise GenerationConfigError(f"{path} {problem}")
        try:
            content = parse_json(path.read_bytes())
        except OSError as error:
            raise GenerationConfigError(f"{path} cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise GenerationConfigError(f"{path} is not valid JSON: {error}") from error
        if not isinstance(content, dict):
            raise GenerationConfigError(f"{path} must hold a JSON object, not {type(content).__name__}")
        values = {key: content[key] for key in RULES if content.get(key) is not None}
        for key, value in values.items():
            if not RULES[key].accepts(value):
                hint = "; `model.generation_config: none` leaves it aside"
                problem = shortened(f"must be {RULES[key].accepted}, got {value!r}")
                raise GenerationConfigError(f"{path}: {key}: {problem}{hint}")
        if values.get("top_k", 0) == -1:
            values["top_k"] = 0
        return cls(**values)

    @property
    def recommended(self) -> dict[str, float]:
        """The values that differ from the plain ones, by their keys."""
        return {key: value for key in RULES if (value := getattr(self, key)) != getattr(PLAIN, key)}

    def max_tokens(self, asked: int | None) -> int | None:
        """The length of an output for which `asked` was stated; None: as the endpoint has it."""
        limit = self.max_new_tokens
        return asked if limit is None or asked is None else min(asked, limit)

    def default_max_tokens(self, usual: int | None) -> int | None:
        """The length of an output for which nothing was stated; `usual` is the endpoint's."""
        limit = self.max_new_tokens
        return usual if limit is None else limit if usual is None else min(usual, limit)


PLAIN = SamplingDefaults()


def _number(value: Any, low: float, high: float, *, is_open: bool = False) -> bool:
    """Whether `value` is a number from `low` (or, if that is open, above it) to `high`."""
    return type(value) in (int, float) and low <= value <= high and not (is_open and value == low)


RULES = {
    "temperature": Rule("a number from 0 to 2", lambda value: _number(value, 0, 2)),
    "top_p": Rule("a number over 0, up to 1", lambda value: _number(value, 0, 1, is_open=True)),
    "top_k": Rule("a whole number from 0, or -1", lambda value: type(value) is int and -1 <= value <= INT32_MAX),
    "min_p": Rule("a number from 0 to 1", lambda value: _number(value, 0, 1)),
    "repetition_penalty": Rule("a number over 0, up to 100", lambda value: _number(value, 0, 100, is_open=True)),
    "max_new_tokens": Rule("a whole number from 1", lambda value: type(value) is int and 1 <= value <= INT32_MAX),
}
