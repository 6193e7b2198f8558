"""What generation_config.json recommends is the default of requests that say nothing else."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from slipstream.router.catalog.served_model import ModelSource
from slipstream.router.config.router_config import HttpConfig, RouterConfig
from slipstream.router.model_files.sampling_defaults import PLAIN, GenerationConfigError, SamplingDefaults
from slipstream.router.router import Router
from tests.support.router.fake_cluster import MODEL, MODEL_DIR, front, run

RECOMMENDED = SamplingDefaults(0.6, 0.95, 20, 0.1, 1.05)
HI = [{"role": "user", "content": "hi"}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def read(folder: Path, **keys: Any) -> SamplingDefaults:
    (folder / "generation_config.json").write_text(json.dumps(keys))
    return SamplingDefaults.read(folder)


def test_the_keys_of_vllm_are_read_and_others_left_alone(tmp_path: Path) -> None:
    keys = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.05}
    assert read(tmp_path, **keys, do_sample=False, max_length=20, eos_token_id=[2]) == RECOMMENDED
    assert RECOMMENDED.recommended == keys
    assert read(tmp_path, max_new_tokens=64).max_new_tokens == 64


def test_without_a_recommendation_the_defaults_are_plain(tmp_path: Path) -> None:
    assert SamplingDefaults.read(tmp_path) == PLAIN
    assert read(tmp_path, temperature=None, top_k=-1) == PLAIN
    assert read(tmp_path, temperature=0.6) != PLAIN
    assert SamplingDefaults.read(tmp_path, "none") == PLAIN
    assert PLAIN.recommended == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(
            (key, wrong)
            for key in ("temperature", "top_p", "min_p", "repetition_penalty")
            for wrong in (-0.1, "1", True)
        ),
        *((key, wrong) for key in ("top_k", "max_new_tokens") for wrong in (1.0, "5", False, -2)),
        ("temperature", 2.5),
        ("temperature", float("nan")),
        ("top_p", 0),
        ("top_p", 1.5),
        ("min_p", 2),
        ("repetition_penalty", 0),
        ("max_new_tokens", 0),
        ("top_k", [50]),
    ],
)
def test_a_wrong_value_is_refused_by_file_key_and_value(key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(
        GenerationConfigError, match=rf"generation_config\.json: {key}: must be .*, got {re.escape(repr(value))};"
    ):
        read(tmp_path, **{key: value})
    assert SamplingDefaults.read(tmp_path, "none") == PLAIN


@pytest.mark.parametrize("key", ["temperature", "top_k", "max_new_tokens"])
@pytest.mark.parametrize("num_digits", [401, 5001])
def test_a_number_beyond_all_limits_is_refused_and_shortened(key: str, num_digits: int, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(f'{{"{key}": 1{"0" * (num_digits - 1)}}}')
    with pytest.raises(
        GenerationConfigError, match=rf"{key}: must be .*, got .?10{{19}}\.\.\. \({num_digits} digits\)"
    ):
        SamplingDefaults.read(tmp_path)


def test_a_link_that_leads_nowhere_is_not_taken_for_no_recommendation(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").symlink_to("gone")
    with pytest.raises(GenerationConfigError, match=r"generation_config\.json is a link to a file that does not exist"):
        SamplingDefaults.read(tmp_path)


@pytest.mark.parametrize(("content", "problem"), [(b"{", "is not valid JSON"), (b"[]", "must hold a JSON object")])
def test_a_broken_file_is_named(content: bytes, problem: str, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_bytes(content)
    with pytest.raises(GenerationConfigError, match=rf"generation_config\.json {problem}"):
        SamplingDefaults.read(tmp_path)


def test_requests_that_say_nothing_are_sampled_as_recommended() -> None:
    async def main() -> None:
        async with front(defaults=RECOMMENDED) as site:
            nulls = dict.fromkeys(RECOMMENDED.recommended)
            for fields in ({}, nulls):
                for path, prompt in ((CHAT, {"messages": HI}), (COMPLETIONS, {"prompt": "hi"})):
                    assert (await site.post(path, **prompt, **fields))[0] == 200
            for request in site.service.requests:
                sampling = request.sampling
                assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.6, 0.95, 20)
                assert (sampling.min_p, sampling.repetition_penalty) == (0.1, 1.05)

    run(main)


def test_what_a_request_says_counts_before_the_recommendation() -> None:
    async def main() -> None:
        async with front(defaults=RECOMMENDED) as site:
            fields = {"temperature": 0, "top_p": 1, "top_k": -1, "min_p": 0, "repetition_penalty": 1}
            assert (await site.post(CHAT, messages=HI, **fields))[0] == 200
            assert (await site.post(CHAT, messages=HI, top_k=0, temperature=1))[0] == 200
            first, second = (request.sampling for request in site.service.requests)
            assert (first.temperature, first.top_p, first.top_k) == (0, 1, 0)
            assert (first.min_p, first.repetition_penalty) == (0, 1)
            assert (second.temperature, second.top_k, second.top_p) == (1, 0, 0.95)

    run(main)


def test_max_new_tokens_bounds_every_output() -> None:
    async def main() -> None:
        async with front(defaults=SamplingDefaults(max_new_tokens=8)) as site:
            for fields in ({}, {"max_tokens": 100}, {"max_tokens": 5}):
                assert (await site.post(CHAT, messages=HI, **fields))[0] == 200
                assert (await site.post(COMPLETIONS, prompt="hi", **fields))[0] == 200
            assert [request.sampling.max_tokens for request in site.service.requests] == [8, 8, 8, 8, 5, 5]

    run(main)


def test_a_router_with_a_wrong_file_does_not_start_unless_it_leaves_the_file_aside(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(MODEL_DIR, tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors")))
    (folder / "generation_config.json").write_text('{"temperature": -1}')
    config = RouterConfig(http=HttpConfig(port=0))

    async def main() -> None:
        with pytest.raises(GenerationConfigError, match="temperature: must be a number from 0 to 2, got -1"):
            await Router(config, [ModelSource(MODEL, folder)], "token").start()
        router = Router(config, [ModelSource(MODEL, folder, generation_config="none")], "token")
        await router.start()
        await router.stop()

    run(main)
