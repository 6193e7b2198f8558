"""Tokens that were added to the tokenizer and not to the model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson
import pytest

from slipstream.router.text.tokenizer import Tokenizer, TokenizerError
from slipstream.router.text.unknown_tokens import warning_about
from tests.support.router.fake_cluster import MODEL_DIR, front, run

VOCAB_SIZE = 4096
TEMPLATE = "{% for m in messages %}{{ m.content }}{% if m.role == 'system' %}<|new|>{% endif %}{% endfor %}"
Make = Callable[[str], Path]


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """The demo model with a token beyond its vocabulary, which the template writes after system messages."""
    folder = Path(shutil.copytree(MODEL_DIR, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors")))
    spec = json.loads((folder / "tokenizer.json").read_text())
    spec["added_tokens"].append(spec["added_tokens"][-1] | {"id": VOCAB_SIZE, "content": "<|new|>"})
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def test_a_prompt_with_such_a_token_is_refused_by_its_text(model_dir: Path) -> None:
    async def main() -> None:
        async with front(model_dir=model_dir) as site:
            status, _, body = await site.post("/v1/completions", prompt="a <|new|> b")
            error = orjson.loads(body)["error"]
            assert (status, error["param"]) == (400, "prompt")
            assert "token '<|new|>' has the id 4096, and the model's vocabulary has 4096 tokens" in error["message"]
            assert (await site.post("/v1/completions", prompt="a b"))[0] == 200

    run(main)


def test_a_template_that_writes_such_a_token_is_not_the_clients_fault(model_dir: Path) -> None:
    async def main() -> None:
        async with front(model_dir=model_dir) as site:
            chat = [{"role": "user", "content": "<|new|> typed"}]
            assert (await site.post("/v1/chat/completions", messages=chat))[0] == 200
            chat.append({"role": "system", "content": "4"})
            status, _, body = await site.post("/v1/chat/completions", messages=chat)
            error = orjson.loads(body)["error"]
            assert (status, error["type"], error["param"]) == (500, "server_error", None)
            assert "chat template writes a token that is beyond the model: token '<|new|>'" in error["message"]

    run(main)


def test_a_template_that_writes_such_a_token_in_any_chat_is_found_at_the_start(model_dir: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        Tokenizer.from_directory(model_dir, pool)
        (model_dir / "chat_template.jinja").write_text(TEMPLATE.replace("'system'", "'user'"))
        with pytest.raises(TokenizerError, match=r"beyond the model: token '<\|new\|>' has the id 4096"):
            Tokenizer.from_directory(model_dir, pool)


def test_the_warning_names_a_few() -> None:
    assert "has 1 token beyond the model, whose vocab_size is 9 in config.json: 'a' (9); " in warning_about({9: "a"}, 9)
    many = warning_about({number: f"t{number}" for number in range(20, 8, -1)}, 9)
    assert "has 12 tokens beyond the model" in many
    assert "'t9' (9), 't10' (10), 't11' (11), ...; " in many
