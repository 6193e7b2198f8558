"""Grammars of tools: whether calls drawn from them are valid, and what they cost.

    python scripts/bench/router/bench_tool_grammars.py validity [--formats hermes qwen3_coder]
    python scripts/bench/router/bench_tool_grammars.py cost [--model-dir PATH]

`validity`: for each format and each of the 300 tools of `tests/support/router/tool_schemas.py` one output is drawn at
random, byte by byte, from what the grammar allows, read by the format's parser, and its arguments are validated against
the tool's schema. Once with the format's tags as special tokens, once as text.

`cost`, for 1 to 128 tools: until a request with new tools has its grammar in the router (all trials, one process), the
same for a request with known tools, the grammar's compilation in a worker, the mask of a token within a call. And a
step of the engine with 8 greedy sequences, with tools that none of them has called yet beside none, in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from llguidance import LLMatcher, LLTokenizer  # noqa: E402

from slipstream.router.api.openai.body.structured_output import RequestGrammars  # noqa: E402
from slipstream.router.api.openai.body.tool_grammars import RequestTool, ToolGrammars  # noqa: E402
from slipstream.router.parsers.formats.registry import FORMATS  # noqa: E402
from slipstream.router.parsers.grammar.marker_tokens import MarkerTokens  # noqa: E402
from slipstream.router.protocol.grammar import grammar_of_phase, parser_limits  # noqa: E402
from slipstream.router.protocol.messages import EngineRequest, GrammarSpec, SamplingParams, pack_ids  # noqa: E402
from slipstream.router.protocol.phased_grammar import PhasedGrammar  # noqa: E402
from slipstream.workers.config.worker_config import EngineConfig  # noqa: E402
from slipstream.workers.engine.engine_builder import build_runner, engine_limits  # noqa: E402
from slipstream.workers.engine.native_engine import NativeEngine  # noqa: E402
from slipstream.workers.engine.structured_output.grammars import GrammarCompiler  # noqa: E402
from tests.support.router.call_walks import CallWalker, check_calls, grammar_of_tool  # noqa: E402
from tests.support.router.output_writer import DISTINCT_FORMATS  # noqa: E402
from tests.support.router.tool_schemas import ToolSchema, tool_schemas  # noqa: E402

DEMO = ROOT / "models" / "slipstream-demo"
NUMBERS_OF_TOOLS = (1, 10, 60, 128)
NUM_SEQUENCES, NUM_STEPS, NUM_ROUNDS = 8, 200, 12
NUM_KNOWN = 200


def validity(names: Sequence[str]) -> None:
    tools = tool_schemas()
    grammars = {tool.name: grammar_of_tool(tool) for tool in tools}
    print("| format | tags | valid | calls | s |\n|---|---|---|---|---|")
    for form in sorted(DISTINCT_FORMATS, key=lambda form: form.name):
        if (form.calls is None and form.channels is None) or (names and form.name not in names):
            continue
        for is_special in (True, False) if form.calls else (True,):
            walker = CallWalker.of(form, is_special)
            begin = time.process_time()
            num_valid = num_calls = 0
            for tool in tools:
                found = valid_calls(walker, tool, walker.matcher([grammars[tool.name]]))
                num_valid += found > 0
                num_calls += found
            took = time.process_time() - begin
            tags = "tokens" if is_special else "text"
            print(f"| {form.name} | {tags} | {num_valid}/{len(tools)} | {num_calls} | {took:.1f} |", flush=True)


def valid_calls(walker: CallWalker, tool: ToolSchema, matcher: LLMatcher) -> int:
    """The number of calls in an output, 0 if one of them is not valid. An output that does not end by itself is drawn
    again."""
    for seed in range(5):
        drawn = walker.draw(matcher, seed)
        if drawn is None:
            continue
        try:
            answer = walker.read(drawn, [tool])
            check_calls(answer, [tool])
        except Exception as error:  # jsonschema's, or the parser's
            print(f"{walker.form.name}, {tool.name}: {error!r:.300}", file=sys.stderr)
            return 0
        return len(answer.calls)
    return 0


async def cost(model_dir: Path) -> None:
    spec = json.loads((model_dir / "tokenizer.json").read_text())
    markers = MarkerTokens.of(spec["added_tokens"])
    tokenizer = LLTokenizer(json.dumps(spec))
    schemas = tool_schemas()
    print("| format | tools | new tools ms | known tools us | bytes | compile ms | mask us, median | 99% |")
    print("|---|---|---|---|---|---|---|---|")
    for name in ("slipstream-demo", "hermes", "qwen3_coder", "pythonic"):
        for count in NUMBERS_OF_TOOLS:
            tools = [RequestTool(tool.name, tool.parameters, "tools") for tool in schemas[:count]]
            grammars = ToolGrammars(RequestGrammars())
            await RequestGrammars().verdict(GrammarSpec("regex", "a"))
            begin = time.perf_counter()
            made = await grammars.of(FORMATS[name], markers, tools, "auto")
            new_s = time.perf_counter() - begin
            assert made is not None
            begin = time.perf_counter()
            for _ in range(NUM_KNOWN):
                await grammars.of(FORMATS[name], markers, tools, "auto")
            known_s = (time.perf_counter() - begin) / NUM_KNOWN
            compile_s, masks = costs_of_worker(made, tokenizer)
            print(
                f"| {name} | {count} | {1e3 * new_s:.0f} | {1e6 * known_s:.0f} | {len(made.spec)} | "
                f"{1e3 * compile_s:.1f} | {1e6 * statistics.median(masks):.0f} | "
                f"{1e6 * sorted(masks)[len(masks) * 99 // 100]:.0f} |",
                flush=True,
            )


def costs_of_worker(made: GrammarSpec, tokenizer: LLTokenizer) -> tuple[float, list[float]]:
    """Seconds for the compilation, and for each mask of some outputs drawn at random."""
    import random

    (phase,) = (phase for phase in PhasedGrammar.of(made.spec).phases if phase.grammar is not None)
    begin = time.perf_counter()
    prototype = LLMatcher(tokenizer, grammar_of_phase(phase), log_level=0, limits=parser_limits())
    compile_s = time.perf_counter() - begin
    assert not prototype.is_error(), prototype.get_error()
    masks = []
    for seed in range(20):
        rng, matcher = random.Random(seed), prototype.deep_copy()
        for _ in range(60):
            begin = time.perf_counter()
            mask = matcher.compute_bitmask()
            masks.append(time.perf_counter() - begin)
            allowed = [i for i in range(tokenizer.vocab_size) if mask[i >> 3] >> (i & 7) & 1]
            matcher.consume_token(rng.choice(allowed))
            if matcher.is_stopped():
                break
    return compile_s, masks


def idle_steps(model_dir: Path, grammar: GrammarSpec) -> None:
    """Milliseconds of CPU time for a step, in turns."""
    config = EngineConfig(dtype="float32", num_pages=2048)
    limits = engine_limits(model_dir, config)
    runner = build_runner(model_dir, config, limits.num_pages)
    book = GrammarCompiler(model_dir, limits.vocab_size, limits.eos_token_ids)
    times: dict[str, list[float]] = {"without tools": [], "with tools": []}
    for turn in range(2 * NUM_ROUNDS):
        name, used = (("without tools", None), ("with tools", grammar))[turn % 2]
        engine = NativeEngine(limits, runner, book)
        for number in range(NUM_SEQUENCES):
            params = SamplingParams(max_tokens=NUM_STEPS, temperature=0.0, ignore_eos=True, grammar=used)
            prompt = pack_ids(range(100 + number, 160 + number))
            engine.add(EngineRequest(f"{turn}-{number}", 0, prompt, b"", params))
        engine.step()
        engine.step()
        begin = time.process_time()
        num_steps = 0
        while engine.has_work:
            engine.step()
            num_steps += 1
        times[name].append((time.process_time() - begin) / num_steps)
    for name, taken in times.items():
        print(f"a step of {NUM_SEQUENCES} sequences {name}: {1e3 * statistics.median(taken):.4f} ms of CPU time")


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("validity").add_argument("--formats", nargs="*", default=[])
    commands.add_parser("cost").add_argument("--model-dir", type=Path, default=DEMO)
    asked: Any = parser.parse_args(argv)
    if asked.command == "validity":
        validity(asked.formats)
        return 0
    asyncio.run(cost(asked.model_dir))
    spec = json.loads((DEMO / "tokenizer.json").read_text())
    tools = [RequestTool(tool.name, tool.parameters, "tools") for tool in tool_schemas()[:60]]
    markers = MarkerTokens.of(spec["added_tokens"])
    made = asyncio.run(ToolGrammars(RequestGrammars()).of(FORMATS["slipstream-demo"], markers, tools, "auto"))
    assert made is not None
    idle_steps(DEMO, made)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
