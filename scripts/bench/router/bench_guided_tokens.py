"""Tokens spent on guided answers, and how many of them end: with and without white space, closed objects and open ones.

    python scripts/bench/router/bench_guided_tokens.py
    python scripts/bench/router/bench_guided_tokens.py --model-dir PATH --max-tokens 1000 --seeds 10

Each schema of `guided_schemas.py` is answered with each seed at temperature 1, by the engine in
this process; the four ways of writing JSON get the same prompts and seeds. An answer has ended if it is complete before
`--max-tokens`. White space is that outside of strings. Nothing is left on the disk.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tokenizers

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from scripts.bench.router.guided_schemas import SCHEMAS  # noqa: E402
from slipstream.router.protocol.grammar import JsonStyle  # noqa: E402
from slipstream.router.protocol.messages import EngineRequest, SamplingParams, pack_ids  # noqa: E402
from slipstream.router.structured_output.json_grammar import json_grammar_spec  # noqa: E402
from slipstream.workers.config.worker_config import EngineConfig  # noqa: E402
from slipstream.workers.engine.engine_builder import build_runner, engine_limits  # noqa: E402
from slipstream.workers.engine.native_engine import NativeEngine  # noqa: E402
from slipstream.workers.engine.structured_output.grammars import GrammarCompiler  # noqa: E402

WAYS = {
    "open, any white space": JsonStyle("any", True),
    "open, compact": JsonStyle("compact", True),
    "closed, any white space": JsonStyle("any", False),
    "closed, compact": JsonStyle("compact", False),
    "closed, a space or none behind commas and colons (default)": JsonStyle("optional", False),
}
STRING = re.compile(r'"(?:[^"\\]|\\.)*"?')
PAGE_TOKENS = 16


@dataclass(slots=True)
class Tally:
    """What one way of writing has cost."""

    num_tokens: list[int] = field(default_factory=list)
    num_of_ended: list[int] = field(default_factory=list)
    num_chars: int = 0
    num_blanks: int = 0

    def add(self, text: str, num_tokens: int, *, has_ended: bool) -> None:
        self.num_tokens.append(num_tokens)
        if has_ended:
            self.num_of_ended.append(num_tokens)
        outside = STRING.sub("", text)
        self.num_chars += len(text)
        self.num_blanks += sum(map(str.isspace, outside))


class Subject:
    """A model whose engine answers in this process."""

    def __init__(self, model_dir: Path, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._tokenizer = tokenizers.Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        self._config = EngineConfig(dtype="float32", page_tokens=PAGE_TOKENS, num_pages=2048)
        self._limits = engine_limits(model_dir, self._config)
        self._runner = build_runner(model_dir, self._config, 2048)
        self._book = GrammarCompiler(model_dir, self._limits.vocab_size, self._limits.eos_token_ids)

    def answer(self, schema: dict[str, Any], style: JsonStyle, seeds: int, tally: Tally) -> None:
        engine = NativeEngine(self._limits, self._runner, self._book)
        grammar = json_grammar_spec(json.dumps(schema), style)
        prompt = self._tokenizer.encode(f"Answer in JSON with {', '.join(map(str, schema))}.\n").ids
        for seed in range(seeds):
            params = SamplingParams(self._max_tokens, temperature=1.0, seed=seed, grammar=grammar)
            engine.add(EngineRequest(str(seed), 0, pack_ids(prompt), b"", params))
        token_ids: dict[str, list[int]] = {str(seed): [] for seed in range(seeds)}
        while engine.has_work:
            for output in engine.step():
                token_ids[output.request_id] += output.token_ids
                if output.finish_reason is not None:
                    ids = token_ids[output.request_id]
                    if output.finish_reason not in ("stop", "length"):
                        raise RuntimeError(f"an answer has ended with {output.finish_reason}")
                    text = self._tokenizer.decode(ids, skip_special_tokens=True)
                    tally.add(text, len(ids), has_ended=output.finish_reason == "stop")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-dir", type=Path, default=ROOT / "models" / "slipstream-demo")
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=8)
    args = parser.parse_args()
    subject = Subject(args.model_dir, args.max_tokens)
    print("| objects and white space | tokens, mean | of those that ended, median | white space | ended |")
    print("|---|---|---|---|---|")
    for name, style in WAYS.items():
        tally = Tally()
        for schema in SCHEMAS.values():
            subject.answer(schema, style, args.seeds, tally)
        ended = len(tally.num_of_ended) / len(tally.num_tokens)
        print(
            f"| {name} | {statistics.fmean(tally.num_tokens):.0f} | {statistics.median(tally.num_of_ended or [0]):.0f} "
            f"| {tally.num_blanks / tally.num_chars:.0%} of characters | {ended:.0%} of {len(tally.num_tokens)} |",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
