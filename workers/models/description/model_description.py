"""What is known of a general model without its weights, as it goes from the process that finds it out to others."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.directory.model_spec import GeneralSpec

DIRECTORY = "{directory}"


class CodeNeededError(ModelError):
    """The model's directory has code of its own, and transformers has none for it."""


class CodeNotRunError(ModelError):
    """The model needs code of its own, which its entry allows, but which this process must not run."""


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """`tensors` are the shapes of all weights by name, tied ones among them; a checkpoint may have others, which
    transformers renames and converts. `num_parameters` counts tied ones once."""

    spec: GeneralSpec
    tensors: dict[str, tuple[int, ...]] = field(default_factory=dict)
    tied: tuple[str, ...] = ()  # names that need not be stored
    num_parameters: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """The description, or why there is none: a sentence, with `DIRECTORY` in the place of the model's. `needs_code`: it
    was not tried, because the model has code of its own."""

    description: ModelDescription | None = None
    refusal: str = ""
    needs_code: bool = False

    def result(self, model_dir: Path) -> ModelDescription:
        """Raises ModelError."""
        if self.description is not None:
            return self.description
        refusal = self.refusal.replace(DIRECTORY, str(model_dir))
        raise CodeNeededError(refusal) if self.needs_code else ModelError(refusal)

    def to_json(self) -> bytes:
        return _FOUND.dump_json(self)

    @staticmethod
    def of_json(text: bytes) -> Found:
        """Raises ValueError."""
        try:
            return _FOUND.validate_json(text)
        except ValidationError as error:
            raise ValueError(str(error)) from error


_FOUND = TypeAdapter(Found)
