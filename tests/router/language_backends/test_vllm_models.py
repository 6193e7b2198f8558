"""Models of the backend `vllm`, asked as their users ask them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.router.language_lab import language_lab, strings, texts_of, write_language_model


def test_a_text_is_continued_as_in_the_api_of_openai(tmp_path: Path) -> None:
    async def main() -> None:
        write_language_model(tmp_path / "models", "chat_llm", arguments={"model": "demo"})
        async with language_lab(tmp_path) as lab:
            assert await lab.client.is_model_ready("chat_llm")
            wanted = (await lab.completion("count", max_tokens=64))["text"]
            (whole,) = await lab.infer("chat_llm", {"text_input": strings("count")}, {"max_tokens": 64})
            assert texts_of(whole, "text_output") == ["count" + wanted]
            assert await lab.text("chat_llm", "count", {"max_tokens": "64"}) == wanted
            assert await lab.text("chat_llm", "count", {"max_tokens": 64}, stream=True) == wanted

    asyncio.run(main())
