"""The demo model's architecture and its training loop."""

from __future__ import annotations

import math
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from scripts.demo_model.corpus import Corpus
from scripts.demo_model.tokenizer import END, EOS, MARK_PATTERN, VOCAB_SIZE, encode

SHORT_TOKENS, LONG_TOKENS = 512, 2048  # sequence lengths of the two phases
BATCH_TOKENS = 4096
MUON_LR, ADAMW_LR = 5e-3, 3e-3
WARMUP, DECAY_FROM = 0.02, 0.3  # fractions of the run


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """A new model with random weights."""
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=416,
        num_hidden_layers=5,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    for layer in model.model.layers:  # each block starts as the identity
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
        torch.nn.init.zeros_(layer.mlp.down_proj.weight)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.convert_tokens_to_ids([END, EOS]),
        pad_token_id=tokenizer.pad_token_id,
    )
    return model


def batches(corpus: Corpus, tokenizer: PreTrainedTokenizerFast, tokens: int, seed: int) -> Iterator[torch.Tensor]:
    """Endless batches [sequences, tokens + 1] int64 of shuffled windows, every epoch worded and cut anew."""
    rng = random.Random(seed)
    sequences = BATCH_TOKENS // tokens
    while True:
        ids = torch.from_numpy(encode(tokenizer, corpus.documents(rng)).astype(np.int64))
        starts = list(range(0, len(ids) - tokens - 1, tokens))
        rng.shuffle(starts)
        for first in range(0, len(starts) - sequences + 1, sequences):
            yield torch.stack([ids[s : s + tokens + 1] for s in starts[first : first + sequences]])


def loss_of(model: LlamaForCausalLM, batch: torch.Tensor) -> torch.Tensor:
    """Mean next-token loss in nats, scalar, of batch [sequences, tokens + 1]."""
    with torch.autocast(batch.device.type, torch.bfloat16):
        logits = model(batch[:, :-1], use_cache=False).logits  # [sequences, tokens, vocab]
    return F.cross_entropy(logits.flatten(0, 1).float(), batch[:, 1:].flatten())


def learning_rate_factor(progress: float) -> float:
    """Warm-up, plateau, then linear decay to nearly zero at progress 1."""
    return max(0.002, min(1.0, progress / WARMUP, (1 - progress) / (1 - DECAY_FROM)))


class Training:
    """The state of a run, which a checkpoint holds, so that a run that was interrupted goes on from its last one.

    Matrices of the blocks learn by Muon, embeddings and norms by AdamW.
    """

    def __init__(self, model: LlamaForCausalLM) -> None:
        self.model = model
        matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
        others = [p for name, p in model.named_parameters() if p.ndim == 1 or "embed" in name]
        muon = torch.optim.Muon(matrices, lr=MUON_LR, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
        adamw = torch.optim.AdamW(others, lr=ADAMW_LR, betas=(0.9, 0.95), weight_decay=0.0)
        self._peaks = [(muon, MUON_LR), (adamw, ADAMW_LR)]
        self._compiled_loss = torch.compile(loss_of, dynamic=False)
        self.num_steps = 0
        self.elapsed_s = 0.0  # of all parts of the run
        self._average = math.log(VOCAB_SIZE)

    def save(self, path: Path) -> None:
        """Writes a checkpoint, at once or not at all."""
        optimizers = [optimizer.state_dict() for optimizer, _ in self._peaks]
        run = {"num_steps": self.num_steps, "elapsed_s": self.elapsed_s, "average": self._average}
        torch.save({"model": self.model.state_dict(), "optimizers": optimizers, **run}, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)

    def load(self, path: Path) -> None:
        """Goes on from a checkpoint."""
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        for (optimizer, _), saved in zip(self._peaks, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.num_steps, self.elapsed_s, self._average = state["num_steps"], state["elapsed_s"], state["average"]

    def run(
        self,
        batches_of: Callable[[int], Iterator[torch.Tensor]],
        progress_of: Callable[[int, float], float],
        checkpoint: Callable[[], None],
        checkpoint_s: float,
        long_from: float,
    ) -> None:
        """Until `progress_of(steps, elapsed seconds)` reaches 1. From progress `long_from` on, the sequences are long,
        so that long prompts are nothing new to the model."""
        short, long = batches_of(SHORT_TOKENS), batches_of(LONG_TOKENS)
        began_s = saved_s = time.monotonic()
        before_s = self.elapsed_s
        while (progress := progress_of(self.num_steps, self.elapsed_s)) < 1:
            self._step(next(long if progress >= long_from else short), progress)
            now_s = time.monotonic()
            self.elapsed_s = before_s + now_s - began_s
            if self.num_steps % 50 == 0:
                rate = self.num_steps * BATCH_TOKENS / self.elapsed_s
                step, loss = self.num_steps, self._average
                print(f"{step=} {progress=:.3f} {self.elapsed_s=:.0f} {loss=:.3f} tokens/s={rate:.0f}", flush=True)
            if now_s - saved_s > checkpoint_s:
                checkpoint()
                saved_s = now_s

    def _step(self, batch: torch.Tensor, progress: float) -> None:
        for optimizer, peak in self._peaks:
            for group in optimizer.param_groups:
                group["lr"] = peak * learning_rate_factor(progress)
        loss = self._compiled_loss(self.model, batch.to(self.model.device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer, _ in self._peaks:
            optimizer.step()
            optimizer.zero_grad()
        self._average += 0.02 * (loss.item() - self._average)
        self.num_steps += 1


@torch.inference_mode()
def evaluate(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, documents: list[str]) -> dict[str, float]:
    """Loss over documents, each read from its start in windows of at most 1,024 tokens, per token and per byte."""
    nats, num_tokens, num_bytes = 0.0, 0, 0
    for document in documents:
        ids = torch.from_numpy(encode(tokenizer, [document]).astype(np.int64)).to(model.device)
        num_bytes += len(re.sub(MARK_PATTERN, "", document).encode())
        for window in [ids[s : s + 1025] for s in range(0, len(ids) - 1, 1024)]:
            nats += loss_of(model, window[None]).item() * (len(window) - 1)
            num_tokens += len(window) - 1
    return {
        "nats_per_token": round(nats / num_tokens, 4),
        "bits_per_byte": round(nats / math.log(2) / num_bytes, 4),
        "tokens": num_tokens,
        "bytes": num_bytes,
    }
