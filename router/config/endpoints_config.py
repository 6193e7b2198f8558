"""Settings of the endpoints of OpenAI's shape that tensor models are served at: which model answers, by which of its
tensors, and what is done before and after it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

EndpointKind: TypeAlias = Literal["embeddings", "rerank", "images", "transcriptions", "chat"]
MAX_PIXELS_OF_A_SIDE = 4096

TEXT_ROLES = frozenset({"text", "input_ids", "attention_mask", "token_type_ids"})
RERANK_ROLES = frozenset({"query", "document", "input_ids", "attention_mask", "token_type_ids"})
IMAGE_ROLES = frozenset({"prompt", "negative_prompt", "width", "height", "steps", "guidance", "seed"})
AUDIO_ROLES = frozenset({"audio", "length", "language", "prompt", "temperature", "task"})
SPEECH_ROLES = frozenset({"text", "start", "end", "language"})
CHAT_ROLES = frozenset(
    {"text", "system", "stream", "max_tokens", "temperature", "top_p", "seed", "stop"}
    | {"presence_penalty", "frequency_penalty"}
)
ANSWER_ROLES = frozenset({"text", "finish_reason", "prompt_tokens", "completion_tokens"})


@dataclass(frozen=True, slots=True)
class EndpointConfig:
    """What every endpoint has. Its name is what clients ask for, as are `aliases`. `model` "" is the tensor model of
    that name, `version` "" the highest one that is ready. `inputs` has the model's name of the input for each role."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    model: str = ""
    version: str = ""
    aliases: tuple[str, ...] = ()
    inputs: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.version and not self.version.isdigit():
            raise ValueError(f"version must be a number or empty, got {self.version!r}")
        if "" in self.aliases:
            raise ValueError("aliases must not have an empty name")


@dataclass(frozen=True, slots=True)
class EmbeddingsEndpoint(EndpointConfig):
    """Texts to vectors. For a model that takes token ids, texts are tokenised by `tokenizer`, a folder; null: the
    folder of the model's version, or that of the model. `output` "" is one of a known name, or the only one."""

    tokenizer: str | None = None
    output: str = ""
    pooling: Literal["auto", "none", "mean", "max", "cls", "last"] = "auto"
    normalize: bool = True
    matryoshka: bool = False  # clients may ask for fewer dimensions
    max_tokens: int | None = None  # of a text; null: as the tokenizer's files say
    truncate: bool = False  # longer texts are cut, instead of being refused
    prompt: str = ""  # is put before each text

    def __post_init__(self) -> None:
        EndpointConfig.__post_init__(self)
        _check_roles("inputs", self.inputs, TEXT_ROLES)
        _check_positive("max_tokens", self.max_tokens)


@dataclass(frozen=True, slots=True)
class RerankEndpoint(EndpointConfig):
    """A query and documents to scores: by a model that takes both, as texts or as the token ids of the pair, or, with
    `embeddings`, by how near the vectors of that endpoint are."""

    embeddings: str = ""
    tokenizer: str | None = None
    output: str = ""
    activation: Literal["auto", "none", "sigmoid", "softmax"] = "auto"
    max_tokens: int | None = None  # of query and document together
    truncate: bool = True

    def __post_init__(self) -> None:
        EndpointConfig.__post_init__(self)
        _check_roles("inputs", self.inputs, RERANK_ROLES)
        _check_positive("max_tokens", self.max_tokens)
        if self.embeddings and self.model:
            raise ValueError(f"embeddings is {self.embeddings!r}, which excludes model, {self.model!r}")


@dataclass(frozen=True, slots=True)
class ImagesEndpoint(EndpointConfig):
    """A prompt to images. `sizes` are those that clients may ask for (`512x512`), the first is the default; none: the
    model gets no size."""

    output: str = ""
    sizes: tuple[str, ...] = ()
    max_images: int = 10  # of one request

    def __post_init__(self) -> None:
        EndpointConfig.__post_init__(self)
        _check_roles("inputs", self.inputs, IMAGE_ROLES)
        _check_positive("max_images", self.max_images)
        for size in self.sizes:
            width, _, height = size.partition("x")
            sides = [int(side) if side.isdigit() and len(side) < 6 else 0 for side in (width, height)]
            if not all(0 < side <= MAX_PIXELS_OF_A_SIDE for side in sides):
                raise ValueError(f"sizes must be WIDTHxHEIGHT of at most {MAX_PIXELS_OF_A_SIDE} each, got {size!r}")


@dataclass(frozen=True, slots=True)
class TranscriptionsEndpoint(EndpointConfig):
    """Speech to text. An input of numbers gets the samples, one channel at `sample_rate`; one of BYTES gets the file as
    it is. With `window_s`, longer audio is cut into windows, each a row of its own."""

    outputs: dict[str, str] = field(default_factory=dict)
    sample_rate: int = 16_000
    window_s: float | None = None
    max_audio_s: float = 3600.0

    def __post_init__(self) -> None:
        EndpointConfig.__post_init__(self)
        _check_roles("inputs", self.inputs, AUDIO_ROLES)
        _check_roles("outputs", self.outputs, SPEECH_ROLES)
        if not 1000 <= self.sample_rate <= 192_000:
            raise ValueError(f"sample_rate must be 1000 to 192000, got {self.sample_rate}")
        for key in ("window_s", "max_audio_s"):
            value = getattr(self, key)
            if value is not None and not 0.1 <= value < float("inf"):
                raise ValueError(f"{key} must be at least 0.1 and finite, got {value}")


@dataclass(frozen=True, slots=True)
class ChatEndpoint(EndpointConfig):
    """Text in, text out, for chat and plain completions. `prompt` is what the model gets of a conversation: `last` the
    text of the last message of the user, `json` all messages, `template` what the chat template of `tokenizer` makes of
    them. Fields of a request that no input stands for are parameters of the model's request."""

    prompt: Literal["last", "json", "template"] = "last"
    tokenizer: str | None = None
    outputs: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        EndpointConfig.__post_init__(self)
        _check_roles("inputs", self.inputs, CHAT_ROLES)
        _check_roles("outputs", self.outputs, ANSWER_ROLES)


AnyEndpoint: TypeAlias = EmbeddingsEndpoint | RerankEndpoint | ImagesEndpoint | TranscriptionsEndpoint | ChatEndpoint


@dataclass(frozen=True, slots=True)
class EndpointsConfig:
    """The endpoints by kind and name. Several kinds may have one name."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    embeddings: dict[str, EmbeddingsEndpoint] = field(default_factory=dict)
    rerank: dict[str, RerankEndpoint] = field(default_factory=dict)
    images: dict[str, ImagesEndpoint] = field(default_factory=dict)
    transcriptions: dict[str, TranscriptionsEndpoint] = field(default_factory=dict)
    chat: dict[str, ChatEndpoint] = field(default_factory=dict)

    @property
    def is_on(self) -> bool:
        return any(self.of_kinds().values())

    def of_kinds(self) -> dict[EndpointKind, dict[str, AnyEndpoint]]:
        return {
            "embeddings": dict(self.embeddings),
            "rerank": dict(self.rerank),
            "images": dict(self.images),
            "transcriptions": dict(self.transcriptions),
            "chat": dict(self.chat),
        }

    def __post_init__(self) -> None:
        for kind, endpoints in self.of_kinds().items():
            names = Counter([*endpoints, *(alias for one in endpoints.values() for alias in one.aliases)])
            if "" in names:
                raise ValueError(f"{kind} must not have an empty name")
            twice = [name for name, count in names.items() if count > 1]
            if twice:
                raise ValueError(f"{kind} has the name {twice[0]!r} twice")
        for name, endpoint in self.rerank.items():
            if endpoint.embeddings and endpoint.embeddings not in self.embeddings:
                raise ValueError(
                    f"rerank.{name}.embeddings must be one of {sorted(self.embeddings)}, got {endpoint.embeddings!r}"
                )


def _check_roles(key: str, names: dict[str, str], roles: frozenset[str]) -> None:
    for role, name in names.items():
        if role not in roles:
            raise ValueError(f"{key} must have the keys {', '.join(sorted(roles))}, got {role!r}")
        if not name:
            raise ValueError(f"{key}.{role} must not be empty")


def _check_positive(key: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise ValueError(f"{key} must be at least 1, got {value}")
