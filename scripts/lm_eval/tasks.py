"""Small tasks of every kind that lm-eval has, with data of their own: no hub has to be reached."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TEXTS = (
    "The harbour was quiet before sunrise. Two boats lay at the pier, and a man in a grey coat counted the crates.",
    "Water boils at one hundred degrees at sea level. On a mountain the pressure is lower, so it boils sooner.",
    "She opened the letter, read the first line twice, and put it back into the drawer without a word.",
    "A bridge carries more than its own weight. Engineers add a margin, because steel ages and winters are long.",
    "In the garden behind the school the children planted beans, and in June they were taller than the teacher.",
    "The train to the coast leaves at noon. If you miss it, the next one goes in the evening and stops everywhere.",
    "Naïve façades, 12 € a night, 京都 in autumn and a smile 🙂: text is more than letters from a to z.",
    "def area(width, height):\n    return width * height\n\nprint(area(3, 4))  # 12",
)
LONG = " ".join(TEXTS * 6)  # longer than the window of the model, so that it is read in several


def documents() -> dict[str, list[dict[str, Any]]]:
    """By the name of their file."""
    words = [text.split() for text in TEXTS]
    return {
        "texts": [{"text": text} for text in (*TEXTS, LONG)],
        "last_words": [{"before": " ".join(one[:-1]), "last": one[-1]} for one in words],
        "choices": [
            {
                "question": f"{' '.join(one[:6])} ...",
                "choices": [" ".join(other[6:10]) for other in (words[at:] + words[:at])[:4]],
                "answer": 0,
            }
            for at, one in enumerate(words)
        ],
        "beginnings": [{"text": " ".join(one[:8]), "rest": " ".join(one[8:])} for one in words],
    }


TASKS: dict[str, dict[str, Any]] = {
    "choices": {
        "file": "choices",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "answer",
        "metrics": ["acc", "acc_norm"],
    },
    "last_words": {
        "file": "last_words",
        "output_type": "loglikelihood",
        "doc_to_text": "{{before}}",
        "doc_to_target": "{{' ' + last}}",
        "metrics": ["perplexity", "acc"],
    },
    "rolling": {
        "file": "texts",
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metrics": ["word_perplexity", "byte_perplexity", "bits_per_byte"],
    },
    "generation": {
        "file": "beginnings",
        "output_type": "generate_until",
        "doc_to_text": "{{text}}",
        "doc_to_target": "{{rest}}",
        "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 16, "do_sample": False, "temperature": 0.0},
        "metrics": ["exact_match"],
    },
}
PREFIX = "slipstream_"


def write_tasks(folder: Path) -> list[str]:
    """Writes data and tasks, in the form that lm-eval reads. Returns the names of the tasks."""
    for name, rows in documents().items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, task in TASKS.items():
        fields = {key: value for key, value in task.items() if key not in ("file", "metrics")}
        means = {"perplexity": "perplexity", "word_perplexity": "weighted_perplexity"}
        means |= {"byte_perplexity": "weighted_perplexity", "bits_per_byte": "bits_per_byte"}
        config = {
            "task": PREFIX + name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(folder / f"{task['file']}.jsonl")}},
            "test_split": "test",
            **fields,
            "metric_list": [
                {"metric": metric, **({} if metric not in means else {"higher_is_better": False})}
                for metric in task["metrics"]
            ],
        }
        (folder / f"{name}.yaml").write_text(json.dumps(config))  # YAML holds JSON
    return [PREFIX + name for name in TASKS]
