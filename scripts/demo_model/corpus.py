"""The training corpus: Python's standard library, whole files and single functions, and conversations about tasks."""

from __future__ import annotations

import ast
import hashlib
import random
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from scripts.demo_model.conversations import (
    SMALL_TALK,
    SMALL_TALK_REPEATS,
    conversation,
    thoughtful_conversation,
    turn_about,
    written_turns,
)
from scripts.demo_model.functions import Function, functions_in
from scripts.demo_model.json_answers import json_turn
from scripts.demo_model.tokenizer import BOS, EOS
from scripts.demo_model.tool_conversations import tool_conversation

# Of an epoch, about a fourth of whose tokens each are files, functions of the library, written functions, and the rest.
SHARE_OF_TEXTS = 0.3
SHARE_OF_FUNCTIONS = 0.45
NUM_WRITTEN, NUM_TOOLS, NUM_JSON, NUM_THOUGHTS = 11_000, 2_800, 5_000, 4_500  # conversations an epoch


@dataclass(slots=True)
class Corpus:
    texts: list[str]  # whole files and help texts
    functions: list[Function]

    def documents(self, rng: random.Random) -> list[str]:
        """An epoch in random order: some of the files and functions, and tasks in freshly drawn wordings."""
        documents = [BOS + text + EOS for text in rng.sample(self.texts, int(SHARE_OF_TEXTS * len(self.texts)))]
        for function in rng.sample(self.functions, int(SHARE_OF_FUNCTIONS * len(self.functions))):
            if function.summary or rng.random() < 0.3:
                documents.append(conversation([turn_about(function, rng)], rng))
            else:
                documents.append(BOS + function.source + EOS)
        for questions, answer in SMALL_TALK * SMALL_TALK_REPEATS:
            documents += [conversation([(question, answer)], rng) for question in questions]
        documents += [conversation(written_turns(rng), rng) for _ in range(NUM_WRITTEN)]
        documents += [tool_conversation(rng) for _ in range(NUM_TOOLS)]
        documents += [conversation([json_turn(rng)], rng) for _ in range(NUM_JSON)]
        documents += [thoughtful_conversation(rng) for _ in range(NUM_THOUGHTS)]
        rng.shuffle(documents)
        return documents


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
