"""What transformers itself generates, each prompt alone, with eager attention and its own cache, in float32."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from .prompts import NUM_NEW_TOKENS, make_prompts

TIE = 1e-5  # of the top score: so close, either token is right
NOISE = 2e-3  # of a log-probability: more than the order of sums can do in a tiny model


class Reference:
    """`tokens` are those generated for each prompt."""

    def __init__(self, model: PreTrainedModel, *, use_cache: bool = True) -> None:
        self._model: Any = model
        self._use_cache = use_cache
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        self.prompts = make_prompts()
        self.tokens = [self.generate(prompt) for prompt in self.prompts]

    @staticmethod
    def load(model_dir: Path) -> Reference:
        model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="eager")
        return Reference(model.train(False))

    def generate(self, prompt: list[int], num_tokens: int = NUM_NEW_TOKENS) -> list[int]:
        """Greedy; end tokens do not end it."""
        if not self._use_cache:
            tokens: list[int] = []
            for _ in range(num_tokens):
                tokens.append(int(self.scores(prompt, [*tokens, 0])[-1].argmax()))
            return tokens
        with torch.inference_mode():
            output = self._model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=num_tokens,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                use_cache=True,
            )
        generated: list[int] = output[0, len(prompt) :].tolist()
        return generated

    def without_cache(self) -> Reference:
        """Of the same model: all that is known of a sequence is computed anew for each token."""
        return Reference(self._model, use_cache=False)

    def scores(self, prompt: list[int], tokens: list[int]) -> Tensor:
        """Logits at each of the tokens after a prompt, computed in one pass without a cache, [tokens, vocabulary]."""
        num_tokens = len(prompt) + len(tokens)
        options = {"position_ids": torch.arange(num_tokens)[None]} if self._takes_positions else {}
        with torch.inference_mode():
            output = self._model(torch.tensor([prompt + tokens]), use_cache=False, **options)
        logits: Tensor = output.logits[0, len(prompt) - 1 : -1].float()
        return logits

    def inconsistency(self) -> str:
        """How generating with a cache differs from one pass without; empty if it does not. Then
        the cache of the library is at fault."""
        for number, (prompt, tokens) in enumerate(zip(self.prompts, self.tokens, strict=True)):
            scores = self.scores(prompt, tokens)
            best = scores.max(-1).values
            chosen = scores.gather(-1, torch.tensor(tokens)[:, None])[:, 0]
            for at, (top, own) in enumerate(zip(best.tolist(), chosen.tolist(), strict=True)):
                if not top - own <= 100 * TIE * max(1.0, abs(top)):
                    return f"prompt {number}, token {at}: its score is {own:.4f} without a cache, the best {top:.4f}"
        return ""

    def difference(self, number: int, tokens: list[int]) -> str:
        """How `tokens` differ from what was generated for this prompt; empty if they do not.

        Where two scores tie within TIE, either token is right; then what follows must be what the reference
        generates after that token.
        """
        prompt, expected = self.prompts[number], list(self.tokens[number])
        if len(tokens) != len(expected):
            return f"prompt {number}: {len(tokens)} tokens, expected {len(expected)}"
        for at, token in enumerate(tokens):
            if token == expected[at]:
                continue
            scores = self.scores(prompt, [*expected[:at], token])[at]
            top, own = float(scores[expected[at]]), float(scores[token])
            if not abs(top - own) <= TIE * max(1.0, abs(top)):
                return f"prompt {number}, token {at}: {token} ({own:.4f}), expected {expected[at]} ({top:.4f})"
            so_far = [*expected[:at], token]
            expected = (
                so_far + self.generate(prompt + so_far, len(expected) - len(so_far))
                if at + 1 < len(expected)
                else so_far
            )
        return ""
