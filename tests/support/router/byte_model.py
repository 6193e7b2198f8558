"""A second model for tests: its vocabulary is not the demo model's, and it has no chat template."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

VOCAB_SIZE = 260
END = 257  # </s>


def write_byte_model(folder: Path, **generation_config: float) -> Path:
    """Writes what a router reads of a model whose tokens are single bytes, beginning with id 0 in the order of their
    characters, and returns `folder`. `generation_config` are the values that it recommends."""
    folder.mkdir(parents=True, exist_ok=True)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: number for number, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"vocab_size": VOCAB_SIZE, "max_position_embeddings": 4096}))
    if generation_config:
        (folder / "generation_config.json").write_text(json.dumps(generation_config))
    return folder
