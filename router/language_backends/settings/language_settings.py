"""What a model's files say of the language model behind it: `model.json` of `vllm`, the parameters of `tensorrtllm`."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from slipstream.router.language_backends.settings.engine_settings import PAGE_TOKENS, TENSORRT_LLM, VLLM, EngineSettings
from slipstream.router.language_backends.settings.sampling_parameters import READERS, sampling_fields
from slipstream.router.model_repository.config.backends import LANGUAGE_BACKENDS
from slipstream.router.model_repository.model_draft import ModelDraft
from slipstream.router.model_repository.repository_error import LoadError
from slipstream.router.tensors.infer_error import InferError

log = logging.getLogger(__name__)

VLLM_BACKEND, TENSORRT_LLM_BACKEND = LANGUAGE_BACKENDS
ENGINE_FILE = "model.json"
PATH_PARAMETERS = ("model", "gpt_model_path", "engine_dir", "engine", "tokenizer_dir")  # the first that is set counts
UNFILLED = re.compile(r"\$\{\w+\}")  # a placeholder of a template, which stands for the default
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
SERVING_PARAMETERS = frozenset({"exclude_input_in_output", "max_beam_width"})


@dataclass(frozen=True, slots=True)
class LanguageSettings:
    """`asked` is what the files call the language model: the name of a served one, a folder, or an address. `path` is
    where its files are, "" if no such place is known, and then `fault` may say why. `engine` are settings of a
    deployment. `sampling` are defaults of requests. What has no effect here is `ignored`."""

    asked: tuple[str, ...] = ()
    path: str = ""
    fault: str = ""
    engine: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    excludes_input: bool = False
    max_beam_width: int = 1

    @classmethod
    def read(cls, draft: ModelDraft, version: str) -> LanguageSettings:
        """Blocks. Raises LoadError."""
        parameters = {name: text for name, text in draft.parameters.items() if not UNFILLED.fullmatch(text.strip())}
        arguments, table, fault, folder = parameters, TENSORRT_LLM, "", draft.folder / version
        if draft.backend == VLLM_BACKEND:
            arguments, table = engine_arguments(folder), VLLM
            if not arguments:
                fault = f"'{ENGINE_FILE}' containing vllm engine args must be provided in '{draft.folder}'"
        asked = [str(one.get(name) or "") for one in (arguments, parameters) for name in PATH_PARAMETERS]
        asked = list(dict.fromkeys(filter(None, asked)))
        sampling = {name: text for name, text in parameters.items() if name in READERS}
        known = {*sampling, *SERVING_PARAMETERS, *PATH_PARAMETERS}
        try:
            engine = EngineSettings.of(table, {k: v for k, v in arguments.items() if k not in known})
            path = next(filter(None, (path_of(one, folder) for one in asked)), "")
            settings = with_room(engine.settings, path)
            if draft.backend == VLLM_BACKEND:
                settings = with_engines(settings, draft)
            return cls(
                tuple(asked),
                path,
                fault,
                settings,
                sampling_fields(sampling),
                (*engine.ignored, *unknown_parameters(draft, parameters, known)),
                parameters.get("exclude_input_in_output", "").lower() in ("true", "1"),
                int(parameters.get("max_beam_width") or 1),
            )
        except (InferError, ValueError) as error:
            raise LoadError(f"Invalid argument: model '{draft.name}': {error}") from None

    def warn(self, model: str) -> None:
        if self.ignored:
            log.warning("model %r: without effect here: %s", model, ", ".join(self.ignored))


def with_room(settings: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """With a length that fits the pages, where these are fewer than a sequence of the model may fill."""
    engine = settings.get("engine", {})
    num_tokens = engine.get("num_pages", 0) * engine.get("page_tokens", PAGE_TOKENS)
    if not num_tokens or "max_model_len" in engine or num_tokens >= longest_of(path):
        return settings
    return {**settings, "engine": {**engine, "max_model_len": num_tokens}}


def longest_of(path: str) -> int:
    """The longest sequence of the model in a folder, 0 if that is not known."""
    try:
        config = orjson.loads((Path(path) / "config.json").read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return 0
    longest = config.get("max_position_embeddings") if isinstance(config, dict) else None
    return longest if isinstance(longest, int) else 0


def with_engines(settings: Mapping[str, Any], draft: ModelDraft) -> Mapping[str, Any]:
    """As many worker groups as the model has instances, each of which is an engine of its own."""
    num_engines = sum(max(1, group.count) for group in draft.message.instance_group)
    if num_engines < 2:
        return settings
    return {**settings, "decode": {**settings.get("decode", {}), "replicas": num_engines}}


def engine_arguments(version_folder: Path) -> dict[str, Any]:
    """Those of `model.json`, none if there is no such file. Raises LoadError."""
    path = version_folder / ENGINE_FILE
    if not path.is_file():
        return {}
    try:
        arguments = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError) as error:
        raise LoadError(f"Invalid argument: {path}: {error}") from None
    if not isinstance(arguments, dict):
        raise LoadError(f"Invalid argument: {path} must have a JSON object")
    return arguments


def unknown_parameters(draft: ModelDraft, parameters: Mapping[str, str], known: set[str]) -> tuple[str, ...]:
    """Of a configuration whose engine has its settings in another file."""
    if draft.backend != VLLM_BACKEND:
        return ()
    return tuple(f"parameters.{name}" for name in parameters if name not in known)


def path_of(asked: str, version_folder: Path) -> str:
    """A folder may be relative to the version's, the model's, or that of the repository. One without weights, as one
    with an engine of TensorRT, is none."""
    if not asked or "://" in asked:
        return asked
    for base in (version_folder, version_folder.parent, version_folder.parent.parent):
        folder = (base / asked).resolve()
        if folder.is_dir():
            return str(folder) if has_weights(folder) else ""
    return f"hf://{asked}" if HUB_NAME.fullmatch(asked) else ""


def has_weights(folder: Path) -> bool:
    """Its own, or those of versions in numbered folders."""
    return any(any(folder.glob(pattern)) for pattern in ("*.safetensors", "*.bin", "[0-9]*/*.safetensors"))


def is_beside(named: str, draft: ModelDraft) -> bool:
    """Whether it is the name of another model of the same repository."""
    return is_name(named) and named != draft.name and (draft.folder.parent / named).is_dir()


def is_name(named: str) -> bool:
    """Whether it is the name of a model, and no path or address."""
    return "/" not in named and not named.startswith(".")


def unknown_model(model: str, asked: Sequence[str]) -> str:
    named = ", ".join(map(repr, asked))
    said = (
        f"its files name {named}, which is no served model and no folder with weights" if asked else "no file names it"
    )
    key = f"repository.language_models: {{{model}: NAME or PATH}}"
    return f"it is not known which language model serves '{model}': {said}; the deployment can say it, {key}"
