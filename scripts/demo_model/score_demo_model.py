"""How many of its tasks the demo model does right, greedily: the figures of docs/reference/demo_model.md.

    python scripts/demo_model/score_demo_model.py

The wordings and values are drawn as for the training, with another seed, so these are tasks of kinds that the model
knows. The functions of the library are from files that it has not seen.
"""

import argparse
import ast
import json
import random
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from scripts.demo_model.conversations import turn_about, written_turns  # noqa: E402
from scripts.demo_model.corpus import load_corpus  # noqa: E402
from scripts.demo_model.json_answers import json_turn  # noqa: E402
from scripts.demo_model.thoughts import thoughtful_turn  # noqa: E402
from scripts.demo_model.tokenizer import ASSISTANT, BOS, END, END_THINK, THINK, TOOL_CALL, USER  # noqa: E402
from scripts.demo_model.tool_conversations import tool_conversation  # noqa: E402

SEED = 20_000_000  # the training draws with seeds near 0
BATCH = 50

# A prompt, and whether an answer to it is right.
Task = tuple[str, Callable[[str], bool]]


def parses(answer: str) -> bool:
    try:
        ast.parse(answer)
    except (SyntaxError, ValueError):
        return False
    return True


def has_values_of(question: str, expected: dict[str, Any], answer: str) -> bool:
    """Whether it is an object with these keys, and with the values that the question gives."""
    try:
        found = json.loads(answer)
    except ValueError:
        return False
    if not isinstance(found, dict) or set(found) != set(expected):
        return False
    return all(found[key] == value for key, value in expected.items() if str(value) in question)


def asked(question: str, opening: str = "") -> str:
    return f"{BOS}{USER}{question}{END}{ASSISTANT}{opening}"


def written(rng: random.Random) -> Task:
    question, source = written_turns(rng)[0]
    return asked(question), lambda answer: answer == source


def json_answer(rng: random.Random) -> Task:
    question, expected = json_turn(rng)
    return asked(question), lambda answer: has_values_of(question, json.loads(expected), answer)


def call(rng: random.Random) -> Task:
    while TOOL_CALL not in (text := tool_conversation(rng)):
        pass
    prompt, _, rest = text.partition(TOOL_CALL)
    expected = rest.partition(END)[0]
    return prompt, lambda answer: answer == TOOL_CALL + expected


def thought(rng: random.Random) -> Task:
    turn = thoughtful_turn(rng)
    return asked(turn.question, THINK), lambda answer: answer.partition(END_THINK)[2] == turn.answer


def library_functions(rng: random.Random, number: int) -> Iterable[Task]:
    _, held_out = load_corpus()
    known = [function for function in held_out.functions if function.summary]
    return [(asked(turn_about(function, rng)[0]), parses) for function in rng.sample(known, number)]


@torch.inference_mode()
def answers(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompts: list[str]) -> list[str]:
    """Of a batch, up to the end of the turn."""
    ids = tokenizer(prompts, add_special_tokens=False, padding=True, return_tensors="pt")
    output = model.generate(**ids, max_new_tokens=200, do_sample=False)  # type: ignore[misc]
    texts = tokenizer.batch_decode(output[:, ids["input_ids"].shape[1] :])
    return [text.partition(END)[0] if END in text else text + " (not ended)" for text in texts]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model-dir", type=Path, default=ROOT / "models" / "slipstream-demo")
    parser.add_argument("--number", type=int, default=200, help="of each kind (default: %(default)s)")
    args = parser.parse_args()
    model = LlamaForCausalLM.from_pretrained(args.model_dir, dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(args.model_dir, padding_side="left")
    rng = random.Random(SEED)
    kinds: dict[str, Iterable[Task]] = {
        "functions that people ask for first: the one that was learnt": [written(rng) for _ in range(args.number)],
        "functions of library files that it has not seen: valid syntax": library_functions(rng, args.number),
        "calls of tools: the right tool and arguments": [call(rng) for _ in range(args.number)],
        "JSON: the keys that were asked for, with the values given": [json_answer(rng) for _ in range(args.number)],
        "questions with a thought first: the right answer": [thought(rng) for _ in range(args.number)],
    }
    print("| task | right |\n|---|---|")
    for name, tasks in kinds.items():
        listed = sorted(tasks, key=lambda task: len(task[0]))
        num_right = 0
        for begin in range(0, len(listed), BATCH):
            batch = listed[begin : begin + BATCH]
            given = answers(model, tokenizer, [prompt for prompt, _ in batch])
            num_right += sum(is_right(text) for (_, is_right), text in zip(batch, given, strict=True))
        print(f"| {name} | {num_right / len(listed):.0%} of {len(listed)} |", flush=True)


if __name__ == "__main__":
    main()
