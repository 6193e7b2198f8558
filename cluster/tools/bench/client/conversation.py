"""The requests to send: conversations of one or several turns, which are made up, or from a trace or a file."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from slipstream.cluster.tools.bench.client.bench_target import BenchError
from slipstream.cluster.tools.bench.client.prompt_text import PromptWords
from slipstream.cluster.tools.workload.arrival import BLOCK_TOKENS
from slipstream.cluster.tools.workload.workload import Workload

T = TypeVar("T")

TEMPLATE_TOKENS = 64  # the most tokens that a chat template adds to a prompt


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user says: text, or whole messages if a file contains them. `output_length` None: as long as the model
    likes. `model` "": that of the benchmark."""

    text: str
    output_length: int | None
    messages: Sequence[dict[str, Any]] = ()
    model: str = ""


@dataclass(frozen=True, slots=True)
class Conversation(Generic[T]):
    """Requests that follow each other: turns of people, or a sequence of tensors. `at_s` is when it begins according to
    a trace; None: the load decides."""

    turns: Sequence[T]
    at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lengths in tokens, normally distributed, at least 1."""

    mean: float
    stddev: float = 0.0

    def draw(self, rng: random.Random) -> int:
        if not self.stddev:
            return max(round(self.mean), 1)
        return max(round(rng.gauss(self.mean, self.stddev)), round(min(1.0, self.mean)), 1)


@dataclass(frozen=True, slots=True)
class Synthetic:
    """Conversations of random words. `input` is the length of a turn, including the shared prefix of `prefix_tokens`,
    which each conversation takes from one of `num_prefixes`."""

    input: Lengths
    output: Lengths
    turns: Lengths = field(default_factory=lambda: Lengths(1))
    prefix_tokens: int = 0
    num_prefixes: int = 1

    def conversations(self, words: PromptWords, seed: int) -> Iterator[Conversation[Turn]]:
        """An endless series of conversations, the same for the same seed."""
        rng = random.Random(seed)
        prefixes = [words.text(rng, self.prefix_tokens) for _ in range(self.num_prefixes if self.prefix_tokens else 0)]
        while True:
            turns = []
            for number in range(self.turns.draw(rng)):
                num_tokens = self.input.draw(rng)
                if prefixes and number == 0:
                    text = f"{rng.choice(prefixes)} {words.text(rng, max(num_tokens - self.prefix_tokens, 1))}"
                else:
                    text = words.text(rng, num_tokens)
                turns.append(Turn(text, self.output.draw(rng)))
            yield Conversation(turns)


@dataclass(slots=True)
class Replay:
    """The requests of a workload as text. Blocks with equal ids become equal texts. Prompts that are too long for the
    model are cut, and counted in `num_cut`."""

    workload: Workload
    max_model_len: int | None = None
    num_cut: int = 0

    def conversations(self, words: PromptWords, seed: int) -> Iterator[Conversation[Turn]]:
        rng = random.Random(seed)

        @lru_cache(maxsize=4096)
        def block_text(block: int, num_tokens: int) -> str:
            return words.text(random.Random(f"{seed}/{block}"), num_tokens)

        for arrival in self.workload:
            num_input, num_output = self._fitting(arrival.input_length, arrival.output_length)
            texts, left = [], num_input
            for block in arrival.blocks:
                if left <= 0:
                    break
                texts.append(block_text(block, min(BLOCK_TOKENS, left)))
                left -= BLOCK_TOKENS
            if left > 0:
                texts.append(words.text(rng, left))
            yield Conversation([Turn(" ".join(texts), num_output, model=arrival.model)], arrival.at_s)

    def _fitting(self, num_input: int, num_output: int) -> tuple[int, int]:
        room = self.max_model_len
        if room is None or num_input + num_output + TEMPLATE_TOKENS <= room:
            return num_input, num_output
        self.num_cut += 1
        num_output = min(num_output, max(room // 2, 1))
        return max(min(num_input, room - num_output - TEMPLATE_TOKENS), 1), num_output


@dataclass(frozen=True, slots=True)
class PromptFile:
    """The prompts of a file, one JSON object per line, over and over again."""

    turns: Sequence[Turn]

    def conversations(self, words: PromptWords, seed: int) -> Iterator[Conversation[Turn]]:
        while True:
            for turn in self.turns:
                yield Conversation([turn])

    @classmethod
    def read(cls, path: Path, output_length: int | None) -> PromptFile:
        """`prompt` (or `text`, AIPerf's word) or `messages`; `output_length` (or `max_tokens`) if it has one. Raises
        BenchError that names the line."""
        turns = []
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise BenchError(f"{path}: {error}") from None
        for number, line in enumerate(lines, 1):
            if line.strip():
                turns.append(_turn(line, f"{path}:{number}", output_length))
        if not turns:
            raise BenchError(f"{path}: there are no prompts in it")
        return cls(turns)


Source = Synthetic | Replay | PromptFile


def _turn(line: str, where: str, output_length: int | None) -> Turn:
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise BenchError(f"{where}: not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise BenchError(f"{where}: an object was expected, got {line[:60]!r}")
    wanted = fields.get("output_length", fields.get("max_tokens", output_length))
    if wanted is not None and (not isinstance(wanted, int) or isinstance(wanted, bool) or wanted < 1):
        raise BenchError(f"{where}: output_length must be a whole number of at least 1, got {wanted!r}")
    text, messages = fields.get("prompt", fields.get("text")), fields.get("messages")
    if isinstance(text, str) and text:
        return Turn(text, wanted)
    if isinstance(messages, list) and messages and all(isinstance(message, dict) for message in messages):
        return Turn(" ".join(str(message.get("content", "")) for message in messages), wanted, tuple(messages))
    raise BenchError(f"{where}: expected `prompt` with text, or `messages` with a list of them")
