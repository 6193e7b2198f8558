"""How models mark their reasoning."""

from __future__ import annotations

from slipstream.router.parsers.description.output_format import OutputFormat, ReasoningPart

THINK = ReasoningPart(("<think>",), ("</think>",))
# These models begin to think even where their template does not open the section.
ASSUMED_THINK = ReasoningPart(("<think>",), ("</think>",), is_assumed=True)

QWEN3 = OutputFormat("qwen3", reasoning=THINK)
DEEPSEEK_R1 = OutputFormat("deepseek_r1", reasoning=ASSUMED_THINK)
# Granite 3.2 writes sentences, 3.3 tags around the response, too.
GRANITE_REASONING = OutputFormat(
    "granite",
    reasoning=ReasoningPart(
        ("Here is my thought process:", "Here's my thought process:"),
        ("Here is my response:", "Here's my response:"),
    ),
)
GRANITE33_REASONING = OutputFormat("granite33", reasoning=THINK, hidden=("<response>", "</response>"))
MAGISTRAL = OutputFormat("magistral", reasoning=ReasoningPart(("[THINK]",), ("[/THINK]",), anywhere=True))
SEED_REASONING = OutputFormat("seed_oss", reasoning=ReasoningPart(("<seed:think>",), ("</seed:think>",)))

REASONING_FORMATS = (QWEN3, DEEPSEEK_R1, GRANITE_REASONING, GRANITE33_REASONING, MAGISTRAL, SEED_REASONING)
