"""Train the demo model: a small Llama that writes Python, from the standard library's own sources.

    python scripts/demo_model/train_demo_model.py --minutes 120 --threads 2 --out models/slipstream-demo

Reads nothing but the standard library of the interpreter that runs it, and writes a directory in Hugging Face layout.
`docs/reference/demo_model.md` says how the committed model was trained and how good it is. The parts are in
`scripts/demo_model`.
"""

import argparse
import copy
import json
import random
import sys
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.demo_model.conversations import conversation, turn_about
from scripts.demo_model.corpus import Corpus, load_corpus
from scripts.demo_model.tokenizer import ASSISTANT, BOS, END, EOS, USER, train_tokenizer
from scripts.demo_model.training import (
    BATCH_TOKENS,
    LONG_TOKENS,
    Training,
    batches,
    build_model,
    evaluate,
)

SAMPLE_TEXTS = ["def read_file(path):\n", "class Stack:\n", "import os\n\n\ndef remove_empty(directory):\n"]
SAMPLE_WISHES = [
    "Say hello",
    "Write a function that reverses a string.",
    "Write a function that returns the larger of two numbers.",
    "Write a function that counts the numbers in a list that are divisible by 7.",
    "Give me name and city as JSON: Anna is 31 years old and lives in Rome.",
    "Think first. What is 17 + 25?",
]


@torch.inference_mode()
def print_samples(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Print what the model writes after each sample prompt, greedily and sampled."""
    chats = [f"{BOS}{USER}{wish}{END}{ASSISTANT}" for wish in SAMPLE_WISHES]
    for prompt in [BOS + text for text in SAMPLE_TEXTS] + chats:
        ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt").to(model.device)
        for sampling in ({"do_sample": False}, {"do_sample": True, "temperature": 0.7, "top_p": 0.9}):
            output = model.generate(**ids, max_new_tokens=160, **sampling)  # type: ignore[misc]
            print(f"--- {sampling}\n{tokenizer.decode(output[0])}", flush=True)


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write the directory in bf16, from a copy: the weights in training stay in fp32."""
    copy.deepcopy(model).bfloat16().save_pretrained(out)
    tokenizer.save_pretrained(out)


def tokenizer_of(corpus: Corpus, args: argparse.Namespace) -> PreTrainedTokenizerFast:
    """The one of the run that goes on, or a new one."""
    if args.checkpoint.exists():
        return PreTrainedTokenizerFast.from_pretrained(args.out)
    tokenizer = train_tokenizer([*corpus.texts, *corpus.documents(random.Random(args.seed))])
    tokenizer.save_pretrained(args.out)
    return tokenizer


def main() -> None:
    """Train, save, evaluate what was saved, and print samples."""
    parser = argparse.ArgumentParser(description="Train the Slipstream demo model on the standard library.")
    parser.add_argument("--out", type=Path, default=Path("models/slipstream-demo"))
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=120.0, help="train by the clock (default: %(default)s)")
    length.add_argument("--steps", type=int, help=f"train for a number of steps of {BATCH_TOKENS} tokens instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--checkpoint",
        type=Path,
        default=Path("build/demo_model.pt"),
        help="where a run that was interrupted goes on, if it is there (default: %(default)s)",
    )
    parser.add_argument("--checkpoint-minutes", type=float, default=5.0)
    parser.add_argument(
        "--long-from",
        type=float,
        default=0.8,
        help=f"fraction of the run after which sequences have {LONG_TOKENS} tokens",
    )
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    corpus, held_out = load_corpus()
    tokenizer = tokenizer_of(corpus, args)
    args.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    model = build_model(tokenizer).to(args.device)
    print(f"{len(corpus.texts)} texts, {sum(map(len, corpus.texts))} characters, {len(corpus.functions)} functions")
    print(f"{model.num_parameters()} parameters on {args.device}", flush=True)

    def progress_of(step: int, elapsed_s: float) -> float:
        return float(step / args.steps if args.steps else elapsed_s / (60 * args.minutes))

    training = Training(model)
    if args.checkpoint.exists():
        training.load(args.checkpoint)
        print(f"goes on after {training.num_steps} steps", flush=True)
    seed = args.seed + training.num_steps  # other windows than before
    training.run(
        lambda tokens: batches(corpus, tokenizer, tokens, seed),
        progress_of,
        lambda: training.save(args.checkpoint),
        60 * args.checkpoint_minutes,
        args.long_from,
    )
    save(model, tokenizer, args.out)
    model = LlamaForCausalLM.from_pretrained(args.out).to(args.device)  # judge what was written, bf16 and all
    rng = random.Random(args.seed)
    chats = [conversation([turn_about(f, rng)], rng) for f in held_out.functions if f.summary]
    report = {
        "seed": args.seed,
        "steps": training.num_steps,
        "seconds": round(training.elapsed_s),
        "tokens": training.num_steps * BATCH_TOKENS,
        "held_out_source": evaluate(model, tokenizer, [BOS + text + EOS for text in held_out.texts]),
        "held_out_chat": evaluate(model, tokenizer, chats),
    }
    (args.out / "training.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report), flush=True)
    print_samples(model, tokenizer)


if __name__ == "__main__":
    main()
