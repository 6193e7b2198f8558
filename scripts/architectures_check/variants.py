"""The ways in which a model is served; each must give the tokens of the reference."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from slipstream.router.protocol.messages import EngineRequest
from slipstream.workers.config.worker_config import EngineConfig
from slipstream.workers.engine.engine_builder import engine_limits
from slipstream.workers.engine.limits.pool_size import page_demand
from slipstream.workers.engine.native_engine import NativeEngine
from slipstream.workers.engine.plan.step_plan import PageSend
from slipstream.workers.models.directory.model_spec import LanguageModelSpec

from .engine_driver import Generated, Results, greedy_request, run, ticket_for
from .prompts import MAX_MODEL_LEN, NUM_NEW_TOKENS, PAGE_TOKENS
from .rank_group import ForkedRanks, LocalRanks, Ranks
from .reference import NOISE, Reference

NUM_PAGES = 512
MOST_EXTRA_PAGES = 32  # beyond what one sequence needs; among so few is a number with which sequences are preempted
SMALL_STEP = 7  # tokens; no page, no window and no prompt is a multiple of it
NUM_LOGPROBS = 3
TOKENS_BEFORE_MOVE = 4


class DiffersError(Exception):
    """The outcome is not what it must be; the text says how."""


class NotServedError(Exception):
    """The engine does not do this with such a model; the text says why."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What the variants share. `local` and `other` are ranks of their own, each with a pool; `pair` are two ranks."""

    model_dir: Path
    config: EngineConfig
    reference: Reference
    local: LocalRanks
    other: LocalRanks
    pair: ForkedRanks

    def engine(self, ranks: Ranks, **overrides: object) -> NativeEngine:
        values: dict[str, object] = {"max_num_seqs": 8, "max_step_tokens": 256} | overrides
        config = engine_config(self.config.model_impl, **values)
        return NativeEngine(engine_limits(self.model_dir, config, model=self.spec), ranks)

    @property
    def spec(self) -> LanguageModelSpec:
        return self.local.runner.model.config

    def requests(self, name: str, **more: object) -> list[EngineRequest]:
        prompts = self.reference.prompts
        return [
            greedy_request(f"{name}{n}", prompt, max_tokens=NUM_NEW_TOKENS, **more) for n, prompt in enumerate(prompts)
        ]

    def check(self, results: Results, name: str, attempt: int = 0) -> None:
        """Raises DiffersError."""
        for number in range(len(self.reference.prompts)):
            one = results.get((f"{name}{number}", attempt), Generated())
            if one.finish_reason != "length":
                raise DiffersError(
                    f"prompt {number} ended with {one.finish_reason!r} after {len(one.token_ids)} tokens"
                )
            wrong = self.reference.difference(number, one.token_ids)
            if wrong:
                raise DiffersError(wrong)

    def generate(self, engine: NativeEngine, name: str, **more: object) -> Results:
        for request in self.requests(name, **more):
            engine.add(request)
        results = run(engine, {})
        self.check(results, name)
        return results


def engine_config(model_impl: str, **overrides: object) -> EngineConfig:
    values: dict[str, object] = {
        "dtype": "float32",
        "device": "cpu",
        "page_tokens": PAGE_TOKENS,
        "num_pages": NUM_PAGES,
        "max_model_len": MAX_MODEL_LEN,
        "num_threads": 1,
        "weight_cache_dir": None,
        "model_impl": model_impl,
    }
    return EngineConfig(**(values | overrides))  # type: ignore[arg-type]


def ragged(setting: Setting) -> None:
    """All prompts side by side, of unlike lengths; the probabilities too are those of the reference."""
    engine = setting.engine(setting.local, prefix_caching=False)
    results = setting.generate(engine, "r", logprobs=NUM_LOGPROBS)
    for number, prompt in enumerate(setting.reference.prompts):
        one = results[f"r{number}", 0]
        if one.token_ids != setting.reference.tokens[number]:
            continue  # after a tie, which `check` has looked at
        expected = torch.log_softmax(setting.reference.scores(prompt, one.token_ids), -1)
        for at, logprob in enumerate(one.logprobs):
            found = dict(logprob.top) if logprob is not None else {}
            for token, value in found.items():
                if not math.isclose(value, float(expected[at, token]), abs_tol=NOISE, rel_tol=NOISE):
                    right = float(expected[at, token])
                    raise DiffersError(f"prompt {number}, token {at}: log-probability {value:.4f}, not {right:.4f}")
            if len(found) < NUM_LOGPROBS:
                raise DiffersError(f"prompt {number}, token {at}: {len(found)} log-probabilities")


def chunked(setting: Setting) -> None:
    """A few tokens a step, so that prompts are computed in many parts beside others that decode."""
    setting.generate(setting.engine(setting.local, prefix_caching=False, max_step_tokens=SMALL_STEP), "c")


def cached(setting: Setting) -> None:
    """The same prompts twice: the second time their beginnings are in the cache."""
    engine = setting.engine(setting.local)
    setting.generate(engine, "a")
    before = engine.stats().total_prefix_hit_tokens
    setting.generate(engine, "b")
    hits = engine.stats().total_prefix_hit_tokens - before
    if not hits:
        raise DiffersError("no token was found in the prefix cache")


def preempted(setting: Setting) -> None:
    """With too few pages for all, so that sequences lose theirs and begin again: how few depends on the windows."""
    if not setting.spec.kv.layers:
        raise NotServedError("its sequences take no more pages as they grow, so none is ever preempted")
    if setting.spec.kv.state_bytes and all(layer.window for layer in setting.spec.kv.layers):
        raise NotServedError("its sequences keep a state and the pages of a window, so none is ever preempted")
    for max_step_tokens in (256, 2 * PAGE_TOKENS):
        config = engine_config(setting.config.model_impl, max_step_tokens=max_step_tokens)
        for_one = page_demand(setting.spec, config).pages_for(MAX_MODEL_LEN)
        for num_pages in range(for_one + 2, for_one + MOST_EXTRA_PAGES, 3):
            engine = setting.engine(
                setting.local, num_pages=num_pages, prefix_caching=False, max_step_tokens=max_step_tokens
            )
            setting.generate(engine, "p")
            if engine.stats().total_preemptions:
                return
    raise DiffersError("no sequence was preempted")


def tp2(setting: Setting) -> None:
    """Dealt out to two ranks."""
    setting.generate(setting.engine(setting.pair, max_step_tokens=40), "t")


def handed_over(setting: Setting) -> None:
    """Prompts computed by one engine, their pages copied to another one, which decodes."""
    _hand_over(setting, setting.local, setting.other, "h")


def unlike_tp(setting: Setting) -> None:
    """The same from two ranks to one, and from one to two."""
    _hand_over(setting, setting.pair, setting.local, "u")
    _hand_over(setting, setting.other, setting.pair, "v")


def migrated(setting: Setting) -> None:
    """Sequences that move to another engine while they decode."""
    source = setting.engine(setting.local, prefix_caching=False)
    target = setting.engine(setting.other, prefix_caching=False)
    for request in setting.requests("m"):
        source.add(request)
    results = run(source, {}, TOKENS_BEFORE_MOVE)
    final: Results = {}
    for number, prompt in enumerate(setting.reference.prompts):
        old, new = (f"m{number}", 0), (f"m{number}", 1)
        known = list(results[old].token_ids)
        request = greedy_request(old[0], prompt, known, max_tokens=NUM_NEW_TOKENS, attempt=1)
        reservation = target.adopt(request, 4)
        assert reservation is not None
        ticket = ticket_for(number, reservation, PAGE_TOKENS)
        source.migrations.check_ticket(old, ticket, True)
        source.migrations.freeze(old)
        pages = source.migrations.begin_send(old, ticket)
        setting.other.write(reservation.page_ids, setting.local.read(pages))
        source.abort(old, keep_pages=True)
        source.migrations.end_send(old)
        source.release(old)
        target.land(new)
        target.start(new, ())
        final[new] = Generated(known)
    source.check_integrity()
    run(target, final)
    setting.check(final, "m", 1)


def _hand_over(setting: Setting, source: Ranks, target: Ranks, name: str) -> None:
    prefill = setting.engine(source, max_step_tokens=40)
    decode = setting.engine(target)
    places = {}
    for number, request in enumerate(setting.requests(name)):
        reservation = decode.reserve(request)
        assert reservation is not None
        places[number] = reservation.page_ids
        prefill.add_prefill(request, ticket_for(number, reservation, PAGE_TOKENS))
    source.sends.clear()
    results: Results = {}
    sends: dict[int, PageSend] = {}
    while prefill.has_work:
        outputs = prefill.step()
        sends |= {send.ticket.transfer_id: send for send in source.sends}
        for output in outputs:
            number = int(output.request_id[len(name) :])
            key = output.request_id, output.attempt
            pages = np.frombuffer(sends[number].page_ids, np.int32).tolist()
            target.write(places[number], source.read(pages))
            results[key] = Generated()
            results[key].take(output)
            prefill.release(key)
            decode.land(key)
            decode.start(key, output.token_ids)
    prefill.check_integrity()
    run(decode, results)
    setting.check(results, name)


VARIANTS: dict[str, Callable[[Setting], None]] = {
    "ragged": ragged,
    "chunked": chunked,
    "cached": cached,
    "preempted": preempted,
    "tp2": tp2,
    "handed_over": handed_over,
    "unlike_tp": unlike_tp,
    "migrated": migrated,
}
NEED_PAIR = frozenset(("tp2", "unlike_tp"))
