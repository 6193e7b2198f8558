"""Train the demo model: a small Llama that writes Python, from the standard library's own sources.

    python scripts/train_demo_model.py --minutes 50 --threads 2 --out models/slipstream-demo

Reads nothing but the standard library of the interpreter that runs it, and writes a directory in Hugging Face
layout. `docs/demo_model.md` tells what the committed model was trained with and how well it does.
"""

import argparse
import ast
import copy
import hashlib
import json
import math
import random
import re
import sysconfig
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

PAD, BOS, EOS, END, TOOL_CALL = "<|pad|>", "<|bos|>", "<|eos|>", "<|end|>", "<|tool_call|>"
SYSTEM, USER, ASSISTANT, TOOL = "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"
SPECIAL_TOKENS = [PAD, BOS, EOS, END, SYSTEM, USER, ASSISTANT, TOOL, TOOL_CALL]  # ids 0..8, in this order
MARK_PATTERN = "|".join(map(re.escape, SPECIAL_TOKENS))

VOCAB_SIZE = 4096
SHORT_TOKENS, LONG_TOKENS = 256, 2048  # sequence lengths of the two phases
BATCH_TOKENS = 4096
MUON_LR, ADAMW_LR = 5e-3, 3e-3
WARMUP, DECAY_FROM = 0.02, 0.3  # fractions of the run

# Line breaks stand alone: a prompt cut before or after one then has the tokens it had in training.
WORD_PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"

# No white space between the marks: each content is a segment of its own, so a server may encode contents as
# plain text, put the marks between them by id, and get what rendering and encoding the whole would give.
CHAT_TEMPLATE = """\
{%- macro text(content) -%}
{%- if content is string -%}{{- content -}}
{%- elif content -%}{%- for part in content if part.type == 'text' -%}{{- part.text -}}{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{{- bos_token -}}
{%- if tools -%}
{{- '<|system|>Tools:' -}}
{%- for tool in tools -%}{{- '\\n' + (tool | tojson) -}}{%- endfor -%}
{{- '<|end|>' -}}
{%- endif -%}
{%- for message in messages -%}
{%- if message.role in ['system', 'developer'] -%}{{- '<|system|>' + text(message.content) -}}
{%- elif message.role in ['user', 'tool'] -%}{{- '<|' + message.role + '|>' + text(message.content) -}}
{%- elif message.role == 'assistant' -%}
{{- '<|assistant|>' + text(message.content) -}}
{%- for call in message.tool_calls or [] -%}
{{- '<|tool_call|>{"name": ' + (call.function.name | tojson) + ', "arguments": ' -}}
{%- if call.function.arguments is string -%}{{- call.function.arguments -}}
{%- else -%}{{- call.function.arguments | tojson -}}{%- endif -%}{{- '}' -}}
{%- endfor -%}
{%- else -%}{{- raise_exception('unknown role: ' + message.role | string) -}}
{%- endif -%}
{{- '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}
"""

SYSTEM_PROMPTS = ["You are a helpful assistant.", "You write Python.", "You are a concise coding assistant."]
SMALL_TALK_REPEATS = 6  # times an epoch
SMALL_TALK_LINES = """
Hello | Hi | Hey there | Good morning | Hello there | hi!
Hello! Which Python function shall I write?
Say hello | Say hello. | Please say hello | Say hi | Greet me
Hello! Nice to meet you.
Say hello in Python | Write hello world | Print hello world in Python
print("Hello, world!")
Who are you? | What are you? | What is your name? | Which model are you? | Introduce yourself.
I am the Slipstream demo model, a very small Llama trained on Python's standard library.
What can you do? | Help | How can you help me? | What are you good at?
I write short Python functions. Try: Write a function that returns the larger of two numbers.
How are you? | How are you doing? | How do you do?
I am fine, thank you. What shall we write?
Thanks | Thank you | Thank you! | Great, thanks.
You are welcome.
Bye | Goodbye | See you | Good night
Goodbye!
What is Slipstream? | Tell me about Slipstream | What does Slipstream do?
Slipstream is a serving cluster for language models. It runs prefill and decode on separate workers.
What is Python? | Tell me about Python | Describe Python.
Python is a programming language. It is easy to read, and its standard library is large.
Are you human? | Are you a person? | Are you an AI?
No, I am a small language model.
Tell me a joke | Make me laugh
Why did the function return early? It had nothing left to yield.
""".strip().splitlines()  # questions, and the answer below
SMALL_TALK = [(q.split(" | "), answer) for q, answer in zip(SMALL_TALK_LINES[::2], SMALL_TALK_LINES[1::2], strict=True)]
FIRST_FUNCTIONS_REPEATS = 4  # times an epoch: the wishes everybody tries first, which no library spells out
FIRST_FUNCTIONS = '''
def add(a, b):
    """Add two numbers."""
    return a + b
def maximum(a, b):
    """Return the larger of two numbers."""
    return a if a > b else b
def reverse_string(text):
    """Reverse a string."""
    return text[::-1]
def is_palindrome(text):
    """Check whether a string is a palindrome."""
    return text == text[::-1]
def is_even(number):
    """Check whether a number is even."""
    return number % 2 == 0
def factorial(n):
    """Compute the factorial of n."""
    return 1 if n <= 1 else n * factorial(n - 1)
def fibonacci(n):
    """Return the first n Fibonacci numbers."""
    a, b, numbers = 0, 1, []
    for _ in range(n):
        numbers.append(a)
        a, b = b, a + b
    return numbers
def is_prime(n):
    """Check whether a number is prime."""
    return n > 1 and all(n % d for d in range(2, int(n ** 0.5) + 1))
def read_file(path):
    """Read a file and return its text."""
    with open(path, encoding="utf-8") as file:
        return file.read()
def count_words(text):
    """Count the words in a string."""
    return len(text.split())
def mean(numbers):
    """Compute the mean of a list of numbers."""
    return sum(numbers) / len(numbers)
def sort_list(items):
    """Sort a list."""
    return sorted(items)
def flatten(lists):
    """Flatten a list of lists."""
    return [item for items in lists for item in items]
def load_json(path):
    """Load a JSON file."""
    with open(path) as file:
        return json.load(file)
'''

SAMPLE_TEXTS = ["def read_file(path):\n", "class Stack:\n", "import os\n\n\ndef remove_empty(directory):\n"]
SAMPLE_WISHES = ["Say hello", "Write a function that reverses a string.", "Write a function that splits a path."]


@dataclass(frozen=True, slots=True)
class Function:
    """A function of the corpus: `source` is dedented, `summary` its docstring's first paragraph in one line or ""."""

    name: str
    arguments: str
    summary: str
    source: str


@dataclass(slots=True)
class Corpus:
    texts: list[str]  # whole files and help texts
    functions: list[Function]

    def documents(self, rng: random.Random) -> list[str]:
        """One epoch in random order: files, functions alone, and conversations in freshly drawn wordings."""
        documents = [BOS + text + EOS for text in self.texts]
        for function in self.functions:
            if function.summary or rng.random() < 0.3:
                documents.append(conversation([turn_about(function, rng)], rng))
            if rng.random() < 0.3:
                documents.append(BOS + function.source + EOS)
        for questions, answer in SMALL_TALK * SMALL_TALK_REPEATS:
            documents += [conversation([(question, answer)], rng) for question in questions]
        for function in functions_in(FIRST_FUNCTIONS) * FIRST_FUNCTIONS_REPEATS:
            documents += [conversation([turn_about(function, rng)], rng) for _ in range(3)]
            documents.append(BOS + function.source + EOS)
        rng.shuffle(documents)
        return documents


def conversation(turns: list[tuple[str, str]], rng: random.Random) -> str:
    """Render (user, assistant) turns as the chat template does, some with a system prompt or small talk before."""
    if rng.random() < 0.1:
        questions, answer = rng.choice(SMALL_TALK)
        turns = [(rng.choice(questions), answer), *turns]
    system = f"{SYSTEM}{rng.choice(SYSTEM_PROMPTS)}{END}" if rng.random() < 0.2 else ""
    return BOS + system + "".join(f"{USER}{ask}{END}{ASSISTANT}{answer}{END}" for ask, answer in turns)


def turn_about(function: Function, rng: random.Random) -> tuple[str, str]:
    """A (wish, answer) pair: mostly the function's source for its docstring or signature, seldom the reverse."""
    kind = "method" if function.arguments.startswith(("self", "cls")) else "function"
    signature = f"{function.name}({function.arguments})"
    if not function.summary:
        return rng.choice([f"Write {signature}", f"Write a {kind} named {function.name}."]), function.source
    if rng.random() < 0.05:
        return f"What does `{function.name}` do?", function.summary
    verb, _, rest = function.summary.rstrip(".").partition(" ")
    wishes = [f"Write a {kind} named {function.name}: {function.summary}", f"Write {signature}: {function.summary}"]
    if verb.istitle() and verb.isalpha() and not verb.endswith("s") and rest:
        imperative = verb.lower()
        third = imperative[:-1] + "ies" if imperative.endswith("y") else imperative
        third += "" if third.endswith("ies") else "es" if imperative.endswith(("sh", "ch", "x")) else "s"
        wishes += 3 * [f"Write a {kind} that {third} {rest}."]
        wishes += [f"Write a {kind} to {imperative} {rest}.", f"Write a {kind} to {imperative} {rest}"]
    elif verb.istitle() and verb.isalpha() and rest:
        wishes += 3 * [f"Write a {kind} that {verb.lower()} {rest}."]
    return rng.choice(wishes), function.source


def functions_in(source: str) -> list[Function]:
    """Functions of 2 to 30 lines and at most 1,000 characters, methods and nested ones included."""
    lines = source.splitlines()
    functions = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.end_lineno is None:
            continue
        body = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
        if "\n" in body and body.count("\n") < 30 and len(body) <= 1000:
            summary = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
            functions.append(Function(node.name, ast.unparse(node.args), summary[:200], body))
    return functions


def load_corpus() -> tuple[Corpus, Corpus]:
    """The standard library split by file into (training, held-out); about every 20th file is held out."""
    root = Path(sysconfig.get_path("stdlib"))
    skipped = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "pydoc_data"}
    train, held_out = Corpus([], []), Corpus([], [])
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if skipped.intersection(relative.parts):
            continue
        try:
            source = path.read_text(encoding="utf-8")
            functions = functions_in(source)
        except (UnicodeDecodeError, SyntaxError):
            continue  # data files of 2to3 and the like
        digest = hashlib.sha256(relative.as_posix().encode()).digest()
        corpus = held_out if digest[0] % 20 == 0 else train
        corpus.texts.append(source)
        corpus.functions += functions
    help_texts = ast.parse((root / "pydoc_data/topics.py").read_text(encoding="utf-8"))
    for node in help_texts.body:
        if isinstance(node, ast.Assign):
            train.texts += ast.literal_eval(node.value).values()
    return train, held_out


def train_tokenizer(corpus: Corpus) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus.texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        additional_special_tokens=[END, SYSTEM, USER, ASSISTANT, TOOL, TOOL_CALL],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )


def build_model(tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
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


def encode(tokenizer: PreTrainedTokenizerFast, documents: list[str]) -> np.ndarray:
    """Token ids of all documents in a row, [tokens] uint16."""
    encodings = tokenizer.backend_tokenizer.encode_batch(documents, add_special_tokens=False)
    return np.concatenate([np.asarray(encoding.ids, dtype=np.uint16) for encoding in encodings])


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


def train(
    model: LlamaForCausalLM,
    batches_of: Callable[[int], Iterator[torch.Tensor]],
    progress_of: Callable[[int, float], float],
    checkpoint: Callable[[], None],
    checkpoint_s: float,
    long_from: float,
) -> tuple[int, float]:
    """Run until `progress_of(steps, elapsed seconds)` reaches 1; return steps and seconds.

    Matrices of the blocks learn by Muon, embeddings and norms by AdamW. From progress `long_from` on, the
    sequences are long, so that long prompts are nothing new to the model.
    """
    device = model.device
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim == 1 or "embed" in name]
    muon = torch.optim.Muon(matrices, lr=MUON_LR, weight_decay=0.05, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW(others, lr=ADAMW_LR, betas=(0.9, 0.95), weight_decay=0.0)
    peaks = [(muon, MUON_LR), (adamw, ADAMW_LR)]
    compiled_loss = torch.compile(loss_of, dynamic=False)
    short, long = batches_of(SHORT_TOKENS), batches_of(LONG_TOKENS)
    started_s = saved_s = time.monotonic()
    step, average = 0, math.log(VOCAB_SIZE)
    while (progress := progress_of(step, time.monotonic() - started_s)) < 1:
        for optimizer, peak in peaks:
            for group in optimizer.param_groups:
                group["lr"] = peak * learning_rate_factor(progress)
        batch = next(long if progress >= long_from else short).to(device)
        loss = compiled_loss(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, _ in peaks:
            optimizer.step()
            optimizer.zero_grad()
        average += 0.02 * (loss.item() - average)
        step += 1
        if step % 50 == 0:
            elapsed_s = time.monotonic() - started_s
            rate = step * BATCH_TOKENS / elapsed_s
            print(f"{step=} {progress=:.3f} {elapsed_s=:.0f} loss={average:.3f} tokens/s={rate:.0f}", flush=True)
        if time.monotonic() - saved_s > checkpoint_s:
            checkpoint()
            saved_s = time.monotonic()
    return step, time.monotonic() - started_s


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


@torch.inference_mode()
def print_samples(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
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


def main() -> None:
    parser = argparse.ArgumentParser(description="Train the Slipstream demo model on the standard library.")
    parser.add_argument("--out", type=Path, default=Path("models/slipstream-demo"))
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=50.0, help="train by the clock (default: %(default)s)")
    length.add_argument("--steps", type=int, help=f"train for a number of steps of {BATCH_TOKENS} tokens instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--checkpoint-minutes", type=float, default=5.0)
    parser.add_argument(
        "--long-from",
        type=float,
        default=0.88,
        help=f"fraction of the run after which sequences have {LONG_TOKENS} tokens",
    )
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    corpus, held_out = load_corpus()
    tokenizer = train_tokenizer(corpus)
    model = build_model(tokenizer).to(args.device)
    print(f"{len(corpus.texts)} texts, {sum(map(len, corpus.texts))} characters, {len(corpus.functions)} functions")
    print(f"{model.num_parameters()} parameters on {args.device}", flush=True)

    def progress_of(step: int, elapsed_s: float) -> float:
        return float(step / args.steps if args.steps else elapsed_s / (60 * args.minutes))

    steps, seconds = train(
        model,
        lambda tokens: batches(corpus, tokenizer, tokens, args.seed),
        progress_of,
        lambda: save(model, tokenizer, args.out),
        60 * args.checkpoint_minutes,
        args.long_from,
    )
    save(model, tokenizer, args.out)
    model = LlamaForCausalLM.from_pretrained(args.out).to(args.device)  # judge what was written, bf16 and all
    rng = random.Random(args.seed)
    chats = [conversation([turn_about(f, rng)], rng) for f in held_out.functions if f.summary]
    report = {
        "seed": args.seed,
        "steps": steps,
        "seconds": round(seconds),
        "tokens": steps * BATCH_TOKENS,
        "held_out_source": evaluate(model, tokenizer, [BOS + text + EOS for text in held_out.texts]),
        "held_out_chat": evaluate(model, tokenizer, chats),
    }
    (args.out / "training.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report), flush=True)
    print_samples(model, tokenizer)


if __name__ == "__main__":
    main()
