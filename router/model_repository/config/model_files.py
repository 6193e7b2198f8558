"""The small files that a configuration names: labels, initial states, inputs of the warm-up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slipstream.router.model_repository.config.config_fault import ConfigFault, ModelConfigError
from slipstream.router.tensors.infer_error import InferErrorCode

WARMUP_FOLDER = "warmup"
STATE_FOLDER = "initial_state"


@dataclass(frozen=True, slots=True)
class ModelFolderFiles:
    """`folder` is that of the model in its repository."""

    model: str
    folder: Path

    def labels(self, output: str, name: str) -> tuple[str, ...]:
        """One a line. Raises ModelConfigError."""
        path = self.folder / name
        if not path.resolve().is_relative_to(self.folder.resolve()):
            text = f"label file path '{path}' for output '{output}' in model '{self.model}' is outside model directory"
            raise ModelConfigError(ConfigFault("output.label_filename", text, InferErrorCode.UNSUPPORTED))
        return tuple(_read(path, "output.label_filename").decode(errors="replace").splitlines())

    def initial_state(self, name: str) -> bytes:
        """Raises ModelConfigError."""
        return _read(self._inside(STATE_FOLDER, name), "sequence_batching.state.initial_state.data_file")

    def check_warmup_file(self, name: str) -> None:
        """Raises ModelConfigError if it is outside its folder. It is read when an instance is warmed up."""
        self._inside(WARMUP_FOLDER, name)

    def _inside(self, folder: str, name: str) -> Path:
        path = self.folder / folder / name
        if not path.resolve().is_relative_to((self.folder / folder).resolve()):
            raise self.refusal(folder, f"file '{name}' of model '{self.model}' is outside its folder '{folder}'")
        return path

    @staticmethod
    def refusal(field: str, text: str) -> ModelConfigError:
        return ModelConfigError(ConfigFault(field, text))


def _read(path: Path, field: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        text = f"failed to open text file for read {path}: {error.strerror}"
        raise ModelConfigError(ConfigFault(field, text, InferErrorCode.INTERNAL)) from None
