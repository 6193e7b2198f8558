"""What the demo model says according to transformers, which knows nothing of this project."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedModel


class Reference:
    """Greedy continuation in float32."""

    def __init__(self, model_dir: Path) -> None:
        self._model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
        self._tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        self._special_ids = sorted(self._tokenizer.get_added_tokens_decoder())

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=True).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids)))

    @torch.inference_mode()
    def continue_greedily(self, prompt_ids: Sequence[int], num_tokens: int) -> list[int]:
        """So many tokens, none of them a special one."""
        step, cache, output = torch.tensor([list(prompt_ids)]), None, []
        for _ in range(num_tokens):
            result = self._model(step, past_key_values=cache, use_cache=True)
            logits, cache = result.logits[0, -1], result.past_key_values
            logits[self._special_ids] = -torch.inf
            output.append(int(logits.argmax()))
            step = torch.tensor([output[-1:]])
        return output

    def text(self, prompt_ids: Sequence[int], num_tokens: int) -> str:
        return self.decode(self.continue_greedily(prompt_ids, num_tokens))
