"""Which language model answers for a model of a repository, and what the cluster is asked for."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tritonclient.utils import InferenceServerException

from slipstream.cluster.commands.checking.repository_problems import problems_in_repository
from slipstream.router.catalog.served_model import ModelSource
from slipstream.router.config.repository_config import RepositoryConfig
from slipstream.router.status.wanted_models import WantedModel
from tests.support.router.fake_cluster import MODEL_DIR
from tests.support.router.language_lab import CHAT, LanguageLab, language_lab, write_language_model
from tests.support.router.until import until

EXPLICIT: dict[str, Any] = {"control_mode": "explicit"}


def wanted(lab: LanguageLab) -> list[WantedModel]:
    assert lab.router.tensors is not None
    return [want.model for want in lab.router.tensors.wanted.current.wants]


async def serve(lab: LanguageLab, model: WantedModel) -> None:
    """What the cluster does."""
    await lab.router.models.add(ModelSource(model.name, Path(model.path)))
    await lab.join(model.name)


@contextmanager
def refused(text: str) -> Iterator[None]:
    with pytest.raises(InferenceServerException) as error:
        yield
    assert text in str(error.value)


def test_a_model_that_is_not_served_is_wanted_and_its_load_waits_for_a_worker(tmp_path: Path) -> None:
    async def main() -> None:
        arguments = {"model": str(MODEL_DIR), "max_model_len": 512, "dtype": "half", "enforce_eager": True}
        write_language_model(tmp_path / "models", "chat_llm", arguments=arguments)
        async with language_lab(tmp_path, sources=[], joins=False) as lab:
            await until(lambda: bool(wanted(lab)))
            (model,) = wanted(lab)
            engine = {"max_model_len": 512, "dtype": "float16"}
            assert model == WantedModel("chat_llm", str(MODEL_DIR), {"engine": engine})
            assert lab.router.tensors is not None
            assert not lab.router.tensors.has_loaded
            assert not await lab.client.is_server_ready()
            await serve(lab, model)
            await lab.router.wait_loaded()
            assert await lab.client.is_model_ready("chat_llm")
            assert await lab.text("chat_llm", "say yes") == "yes!"
            body = {"model": "chat_llm", "prompt": "say yes"}
            status, answer = await lab.post("/v1/completions", body)
            assert (status, answer["choices"][0]["text"]) == (200, "yes!")

    asyncio.run(main())


def test_a_model_that_the_cluster_cannot_start_fails_to_load_with_its_reason(tmp_path: Path) -> None:
    async def main() -> None:
        write_language_model(tmp_path / "models", "chat_llm", arguments={"model": str(MODEL_DIR)})
        async with language_lab(tmp_path, sources=[], joins=False, **EXPLICIT) as lab:
            loading = asyncio.create_task(lab.client.load_model("chat_llm"))
            await until(lambda: bool(wanted(lab)))
            (model,) = wanted(lab)
            lab.router.wanted_model_failed(model, "no host has room for it")
            with refused("version 1 is at UNAVAILABLE state: Unavailable: no host has room for it"):
                await loading
            assert wanted(lab) == []

    asyncio.run(main())


def test_what_is_unloaded_is_not_wanted_and_what_is_reloaded_stays(tmp_path: Path) -> None:
    async def main() -> None:
        folder = write_language_model(tmp_path / "models", "chat_llm", arguments={"model": str(MODEL_DIR)})
        async with language_lab(tmp_path, **EXPLICIT) as lab:
            await lab.client.load_model("chat_llm")
            expected = WantedModel(CHAT, str(MODEL_DIR))
            assert wanted(lab) == [expected]
            os.utime(folder / "1" / "model.json", ns=(1, 1))
            await lab.client.load_model("chat_llm")
            await until(lambda: lab.router.tensors.wanted.num_wants == 1)
            assert wanted(lab) == [expected]
            assert await lab.text("chat_llm", "say yes") == "yes!"
            await lab.client.unload_model("chat_llm")
            await until(lambda: not wanted(lab))
            with refused("Request for unknown model"):
                await lab.text("chat_llm", "say yes")

    asyncio.run(main())


def test_it_is_unready_while_no_worker_is_left(tmp_path: Path) -> None:
    async def main() -> None:
        write_language_model(tmp_path / "models", "chat_llm", arguments={"model": CHAT})
        async with language_lab(tmp_path) as lab:
            lab.workers[0][0].drain()
            await until(lambda: not lab.router.service.has_workers(CHAT))
            assert not await lab.client.is_model_ready("chat_llm")

    asyncio.run(main())


@pytest.mark.parametrize("is_in_files", [False, True])
def test_another_model_of_the_repository_may_answer(tmp_path: Path, is_in_files: bool) -> None:
    async def main() -> None:
        models = tmp_path / "models"
        named = 'parameters { key: "gpt_model_path" value { string_value: "chat_llm" } }' if is_in_files else ""
        write_language_model(models, "a_text", f'backend: "tensorrtllm" {named}')
        write_language_model(models, "chat_llm", arguments={"model": str(MODEL_DIR), "max_num_seqs": 4})
        async with language_lab(
            tmp_path, sources=[], joins=False, language_models={} if is_in_files else {"a_text": "chat_llm"}
        ) as lab:
            await until(lambda: lab.router.tensors.wanted.num_wants == 2)
            (model,) = wanted(lab)
            assert model == WantedModel("chat_llm", str(MODEL_DIR), {"engine": {"max_num_seqs": 4}})
            await serve(lab, model)
            await lab.router.wait_loaded()
            assert await lab.text("chat_llm", "say yes") == "yes!"

    asyncio.run(main())


def test_versions_with_models_of_their_own_are_wanted_by_their_numbers(tmp_path: Path) -> None:
    async def main() -> None:
        config = 'backend: "vllm" version_policy: { all { } }'
        folder = write_language_model(tmp_path / "models", "chat_llm", config, {"model": str(MODEL_DIR)})
        (folder / "2").mkdir()
        (folder / "2" / "model.json").write_text(f'{{"model": "{MODEL_DIR}", "dtype": "float32"}}')
        async with language_lab(tmp_path, sources=[], joins=False) as lab:
            await until(lambda: len(wanted(lab)) == 2)
            settings = {model.name: model.settings for model in wanted(lab)}
            newest = {"engine": {"dtype": "float32"}, "aliases": ["chat_llm"]}
            assert settings == {"chat_llm.1": {}, "chat_llm.2": newest}
            for model in wanted(lab):
                await serve(lab, model)
            await lab.router.wait_loaded()
            assert await lab.client.is_model_ready("chat_llm", "1")
            assert await lab.text("chat_llm", "say yes") == "yes!"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("config", "arguments", "language_models", "text"),
    [
        ('backend: "vllm"', None, {}, "'model.json' containing vllm engine args must be provided in"),
        (
            'backend: "vllm"',
            {"model": "/no/such/folder"},
            {},
            "name '/no/such/folder', which is no served model",
        ),
        ('backend: "vllm"', {"model": CHAT}, {"chat_llm": "other"}, "is 'other', and no such model is served"),
        ('backend: "vllm"', {"model": CHAT, "max_model_len": "long"}, {}, "max_model_len cannot be read"),
        ('backend: "tensorrtllm"', None, {}, "repository.language_models: {chat_llm: NAME or PATH}"),
    ],
)
def test_a_model_whose_language_model_is_not_known_is_refused(
    tmp_path: Path, config: str, arguments: dict[str, Any] | None, language_models: dict[str, str], text: str
) -> None:
    async def main() -> None:
        write_language_model(tmp_path / "models", "chat_llm", config, arguments)
        async with language_lab(tmp_path, language_models=language_models, **EXPLICIT) as lab:
            with refused(text):
                await lab.client.load_model("chat_llm")
            assert wanted(lab) == []

    asyncio.run(main())


def test_a_check_names_what_a_load_would_refuse(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_language_model(models, "known", arguments={"model": CHAT})
    write_language_model(models, "beside", arguments={"model": "known"})
    write_language_model(models, "named", 'backend: "tensorrtllm"')
    write_language_model(models, "unknown", arguments={"model": "gone"})
    write_language_model(models, "wrong", arguments={"model": str(MODEL_DIR), "max_num_seqs": "many"})
    config = RepositoryConfig((str(models),), language_models={"named": str(MODEL_DIR)})
    found = [str(problem) for problem in problems_in_repository(config, {CHAT})]
    assert len(found) == 2, found
    assert found[0].startswith(f"{models}/unknown/1: it is not known which language model serves 'unknown'")
    assert "max_num_seqs cannot be read" in found[1]


def test_a_cache_that_is_smaller_than_a_sequence_bounds_the_length(tmp_path: Path) -> None:
    async def main() -> None:
        config = """backend: "tensorrtllm"
            parameters { key: "gpt_model_path" value { string_value: "DIRECTORY" } }
            parameters { key: "max_tokens_in_paged_kv_cache" value { string_value: "1000" } }"""
        write_language_model(tmp_path / "models", "chat_llm", config.replace("DIRECTORY", str(MODEL_DIR)))
        async with language_lab(tmp_path, sources=[], joins=False) as lab:
            await until(lambda: bool(wanted(lab)))
            (model,) = wanted(lab)
            assert model.settings == {"engine": {"num_pages": 63, "max_model_len": 1008}}

    asyncio.run(main())
