"""The formats by name. Names are vLLM's, where it has one (`--tool-call-parser`, `--reasoning-parser`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from slipstream.router.parsers.description.output_format import OutputFormat
from slipstream.router.parsers.formats.gemma import GEMMA_FORMATS
from slipstream.router.parsers.formats.harmony import OPENAI
from slipstream.router.parsers.formats.json_calls import GRANITE, HERMES, JSON_FORMATS, LLAMA3_JSON
from slipstream.router.parsers.formats.marked_calls import (
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    KIMI_K2,
    MARKED_FORMATS,
    MISTRAL,
)
from slipstream.router.parsers.formats.python_calls import PYTHON_FORMATS
from slipstream.router.parsers.formats.reasoning import (
    ASSUMED_THINK,
    DEEPSEEK_R1,
    GRANITE_REASONING,
    MAGISTRAL,
    QWEN3,
    REASONING_FORMATS,
    SEED_REASONING,
    THINK,
)
from slipstream.router.parsers.formats.tagged_calls import (
    DEEPSEEK_V4,
    DEEPSEEK_V32,
    GLM45,
    GLM47,
    MINIMAX_M2,
    QWEN3_CODER,
    SEED_OSS,
    TAGGED_FORMATS,
)

# A name stands for calls and reasoning where the model has both.
BOTH = (
    replace(DEEPSEEK_V3, reasoning=THINK),
    replace(DEEPSEEK_V31, reasoning=THINK),
    replace(DEEPSEEK_V32, reasoning=THINK),
    replace(DEEPSEEK_V4, reasoning=THINK),
    replace(GLM45, reasoning=THINK),
    replace(GLM47, reasoning=THINK),
    replace(KIMI_K2, reasoning=THINK),
    replace(MINIMAX_M2, reasoning=ASSUMED_THINK),
    replace(MISTRAL, reasoning=MAGISTRAL.reasoning),
    replace(GRANITE, reasoning=GRANITE_REASONING.reasoning),
    replace(SEED_OSS, reasoning=SEED_REASONING.reasoning),
)
ALIASES = {
    "qwen3_json": HERMES,
    "granite4": HERMES,
    "qwen3_xml": QWEN3_CODER,
    "nemotron_v3": replace(QWEN3_CODER, reasoning=THINK),
    "step3p5": replace(QWEN3_CODER, reasoning=THINK),
    "llama4_json": LLAMA3_JSON,
    "olmo3": QWEN3,
    "step3": DEEPSEEK_R1,
    "openai_gptoss": OPENAI,
}


def by_name() -> dict[str, OutputFormat]:
    plain = (
        *JSON_FORMATS,
        *MARKED_FORMATS,
        *TAGGED_FORMATS,
        *PYTHON_FORMATS,
        *GEMMA_FORMATS,
        *REASONING_FORMATS,
        OPENAI,
        *BOTH,
    )
    return {form.name: form for form in plain} | {name: replace(form, name=name) for name, form in ALIASES.items()}


FORMATS: Mapping[str, OutputFormat] = by_name()


def combined(calls: OutputFormat | None, reasoning: OutputFormat | None) -> OutputFormat | None:
    """The calls of one format with the reasoning of another; None: there is none. Channels are both at once: they are
    there if either names them."""
    if calls is None and reasoning is None:
        return None
    for form in (calls, reasoning):
        if form is not None and form.channels is not None:
            return form
    return OutputFormat(
        "+".join(dict.fromkeys(form.name for form in (calls, reasoning) if form is not None)),
        reasoning=reasoning.reasoning if reasoning else None,
        calls=calls.calls if calls else None,
        hidden=reasoning.hidden if reasoning else (),
    )
