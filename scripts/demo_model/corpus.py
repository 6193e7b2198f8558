"""The training corpus: Python's standard library, as whole files, single functions and conversations about them."""

from __future__ import annotations

import ast
import hashlib
import random
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from scripts.demo_model.conversations import (
    FIRST_FUNCTIONS,
    FIRST_FUNCTIONS_REPEATS,
    SMALL_TALK,
    SMALL_TALK_REPEATS,
    conversation,
    turn_about,
)
from scripts.demo_model.functions import Function, functions_in
from scripts.demo_model.tokenizer import BOS, EOS


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
