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
        ids = torch.tensor([list(prompt_ids)])
        asked = {"max_new_tokens": num_tokens, "do_sample": False, "suppress_tokens": self._special_ids}
        tokens: list[int] = self._model.generate(ids, attention_mask=torch.ones_like(ids), **asked)[0].tolist()
        return tokens[len(prompt_ids) :]

    def text(self, prompt_ids: Sequence[int], num_tokens: int) -> str:
        return self.decode(self.continue_greedily(prompt_ids, num_tokens))

    @torch.inference_mode()
    def beams(self, prompt_ids: Sequence[int], num_tokens: int, num_beams: int, penalty: float) -> list[str]:
        """The texts of all hypotheses of so many tokens, best first."""
        ids = torch.tensor([list(prompt_ids)])
        found: list[list[int]] = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            do_sample=False,
            num_beams=num_beams,
            num_return_sequences=num_beams,
            length_penalty=penalty,
            eos_token_id=None,
        ).tolist()
        return [self.decode(tokens[len(prompt_ids) :]) for tokens in found]
