"""Words from which prompts with a given number of tokens are made."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.cluster.tools.bench.client.bench_target import BenchError

MIN_WORDS = 16
MAX_TRIED = 4096
# Words that, with a space before them, are one token in most tokenizers.
COMMON = """
time year people way day man thing woman life child world school state family student group country problem hand
part place case week company system program question work number night point home water room mother area money story
fact month lot right study book eye job word business issue side kind head house service friend father power hour
game line end member law car city name team minute idea body back parent face level office door health person art
war history party result change morning reason research girl guy moment air teacher force education
"""


@dataclass(frozen=True, slots=True)
class PromptWords:
    """`count` words joined by spaces are `count * tokens_per_word` tokens, exactly so if `is_exact`."""

    words: Sequence[str]
    tokens_per_word: float = 1.0
    is_exact: bool = False

    def text(self, rng: random.Random, num_tokens: int) -> str:
        """Random words with about, or exactly, `num_tokens` tokens; at least one word."""
        return " ".join(rng.choices(self.words, k=max(round(num_tokens / self.tokens_per_word), 1)))


def prompt_words(folder: Path) -> PromptWords:
    """Words that are always single tokens. Raises BenchError if the folder has no suitable tokenizer."""
    import tokenizers  # only here, because importing it takes as long as all other imports together

    from slipstream.router.text.tokenizer_files import TokenizerFiles, load_tokenizer

    file = folder / "tokenizer.json" if folder.is_dir() else folder
    try:
        if folder.is_dir():
            tokenizer = load_tokenizer(TokenizerFiles.read(folder).tokenizer_json)
        else:
            tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception for whatever is wrong
        raise BenchError(f"{file}: no tokenizer can be read: {error}") from None
    pieces = {piece.strip("Ġ▁ ") for piece in tokenizer.get_vocab()}
    words = sorted(piece for piece in pieces if 3 <= len(piece) <= 9 and piece.isascii() and piece.islower())
    words = [word for word in words if word.isalpha()]
    rng = random.Random(0)
    words = rng.sample(words, k=min(len(words), MAX_TRIED))  # of a large vocabulary, enough

    def length(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    inside = [word for word in words if length(f"{words[0]} {word}") - length(words[0]) == 1]
    anywhere = [word for word in inside if length(word) == 1]
    chosen = anywhere if len(anywhere) >= MIN_WORDS else inside
    if len(chosen) < MIN_WORDS:
        raise BenchError(f"{file}: too few words of one token each, {len(chosen)}")
    samples = [rng.choices(chosen, k=count) for count in (1, 7, 64, 512)]
    is_exact = all(length(" ".join(sample)) == len(sample) for sample in samples)
    return PromptWords(chosen, is_exact=is_exact)


def common_words(tokens_per_word: float) -> PromptWords:
    return PromptWords(COMMON.split(), tokens_per_word)


def tokenizer_folder(model: dict[str, object]) -> Path | None:
    """The model's directory according to the server's model card (vLLM's `root`), if it is on this machine."""
    for key in ("root", "model_path"):
        place = model.get(key)
        if isinstance(place, str) and place.startswith("/") and (Path(place) / "tokenizer.json").is_file():
            return Path(place)
    return None


def max_model_len(folder: Path) -> int | None:
    """The longest sequence, according to the model's config."""
    try:
        positions = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("max_position_embeddings")
    except (OSError, ValueError):
        return None
    return positions if isinstance(positions, int) else None
