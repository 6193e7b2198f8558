"""The models around a language model of `tensorrtllm`: they call it, or an ensemble leads through it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np

from tests.support.router.inflight_family import write_inflight_family
from tests.support.router.language_lab import LONG, LanguageLab, language_lab, strings, texts_of


async def texts(lab: LanguageLab, model: str, prompt: str, *, stream: bool, **words: str) -> list[str]:
    inputs = {
        "text_input": strings(prompt).reshape(1, 1),
        "max_tokens": np.array([[64]], np.int32),
        "stream": np.array([[stream]]),
        **{name: strings(word).reshape(1, 1) for name, word in words.items()},
    }
    results = await lab.infer(model, inputs)
    return [texts_of(result, "text_output")[0] for result in results if result.get_response().outputs]


def test_an_ensemble_and_a_model_that_calls_answer_as_the_api_of_openai(tmp_path: Path) -> None:
    async def main() -> None:
        write_inflight_family(tmp_path / "models", engine="/engines/llama/fp16/1-gpu")
        async with language_lab(tmp_path, language_models={"tensorrt_llm": "demo"}, has_instances=True) as lab:
            wanted = (await lab.completion("count", max_tokens=64))["text"]
            assert wanted == LONG
            for model in ("ensemble", "tensorrt_llm_bls"):
                assert await texts(lab, model, "count", stream=False) == [wanted]
                parts = await texts(lab, model, "count", stream=True)
                assert len(parts) > 2
                assert "".join(parts).replace(" ", "") == wanted.replace(" ", "")  # each part is decoded alone
            stopped = await texts(lab, "ensemble", "count", stream=False, stop_words=" four", bad_words="")
            assert stopped == ["one two three four"]
            body = {"text_input": "count", "max_tokens": 64, "bad_words": "", "stop_words": ""}
            status, answer = await lab.post("/v2/models/ensemble/generate", body)
            assert (status, answer["text_output"]) == (200, wanted)

    asyncio.run(main())
