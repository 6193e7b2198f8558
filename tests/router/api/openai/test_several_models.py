"""Models of different vocabularies behind one API: each request gets what belongs to its model."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest

from slipstream.router.access.access import Access
from slipstream.router.access.api_key import digest_of
from slipstream.router.api.exchange_context import ExchangeContext
from slipstream.router.catalog.catalog import Catalog
from slipstream.router.catalog.served_model import ServedModel
from slipstream.router.config.access_config import AccessConfig
from slipstream.router.config.router_config import HttpConfig, RouterConfig
from slipstream.router.front.front import Front
from slipstream.router.http.server import HttpServer
from slipstream.router.model_files.sampling_defaults import SamplingDefaults
from slipstream.router.protocol.generation import GenerateRequest
from slipstream.router.protocol.messages import unpack_ids
from slipstream.router.text.tokenizer import Tokenizer
from tests.support.router.byte_model import VOCAB_SIZE, write_byte_model
from tests.support.router.fake_cluster import MODEL, MODEL_DIR, FakeService, FrontUnderTest, Script, events_of, run

BYTES = "org/bytes"
HI = [{"role": "user", "content": "hi"}]
SAID = "wörd"
KEYS = ("chatter", "boss", "nobody")


class ManyModels(FakeService):
    """Says the same in each model's own tokens. By model: the versions, and the longest sequence."""

    def __init__(self, tokenizers: dict[str, Tokenizer]) -> None:
        def script(request: GenerateRequest) -> Script:
            tokenizer = tokenizers[request.model]._tokenizer
            return Script(list(tokenizer.encode(SAID, add_special_tokens=False).ids))

        super().__init__(script)
        self.versions_by_model: dict[str, tuple[str, ...]] = {MODEL: ("1", "2"), BYTES: ("b",)}
        self.longest = {MODEL: 512, BYTES: 4096}

    def shares_of(self, model: str) -> dict[str, float]:
        return {}

    def versions_of(self, model: str) -> tuple[str, ...]:
        return self.versions_by_model[model]

    def max_model_len_of(self, model: str) -> int | None:
        return self.longest[model]


class Site(FrontUnderTest):
    """`front` is its handler, `access` its keys."""

    front: Front
    access: Access

    async def ask(self, path: str, key: str = "", **fields: Any) -> tuple[int, Any]:
        """POST with fields, or GET without."""
        headers = {"Authorization": f"Bearer {key}"} if key else None
        status, _, body = await self.request("POST" if fields else "GET", path, fields or None, headers)
        return status, orjson.loads(body)


@contextlib.asynccontextmanager
async def site(folder: Path, *, has_keys: bool = False) -> AsyncIterator[Site]:
    """A front with two models, whose keys are in `keys.yaml`: chatter may use one of them."""
    with ThreadPoolExecutor(1) as pool:
        tokenizers = {
            MODEL: Tokenizer.from_directory(MODEL_DIR, pool),
            BYTES: Tokenizer.from_directory(write_byte_model(folder / "bytes"), pool),
        }
        service = ManyModels(tokenizers)
        catalog = Catalog.of(
            [
                ServedModel(MODEL, tokenizers[MODEL], aliases=("gpt-4o-mini",)),
                ServedModel(BYTES, tokenizers[BYTES], SamplingDefaults(temperature=0.25), ("bytes", "b")),
            ]
        )
        keys = folder / "keys.yaml"
        rest = {"chatter": f", models: [{MODEL}]", "boss": ", admin: true", "nobody": ", models: [other]"}
        keys.write_text(
            "keys:\n"
            + "".join(
                f"  - {{name: {name}, sha256: '{digest_of(name.encode()).hex()}'{rest[name]}}}\n" for name in KEYS
            )
        )
        access = Access(AccessConfig(str(keys)) if has_keys else None, pool)
        access.open()
        under_test: Site
        front = Front(
            catalog, service, lambda *_: None, lambda: under_test.server.num_connections, RouterConfig(), access
        )
        server = HttpServer(HttpConfig(port=0), front, ExchangeContext)
        under_test = Site(service, tokenizers[MODEL], server, await server.start())
        under_test.front, under_test.access = front, access
        try:
            yield under_test
        finally:
            await server.stop()
            await access.close()
            await service.close()


def test_each_model_has_its_own_tokens_text_and_defaults(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as of:
            for name, temperature in ((MODEL, 1.0), (BYTES, 0.25)):
                status, answer = await of.ask("/v1/completions", model=name, prompt="def")
                assert (status, answer["choices"][0]["text"], answer["model"]) == (200, SAID, name)
                request = of.service.requests[-1]
                assert (request.model, request.sampling.temperature) == (name, temperature)
                _, counted = await of.ask("/tokenize", model=name, prompt="def")
                assert counted["tokens"] == list(unpack_ids(request.packed_prompt()))
                _, text = await of.ask("/detokenize", model=name, tokens=counted["tokens"])
                assert text["prompt"].endswith("def")
            assert counted["count"] == 3  # bytes
            assert counted["max_model_len"] == 4096

    run(main)


def test_a_chat_is_refused_only_where_there_is_no_template_and_streams_where_there_is_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as of:
            status, answer = await of.ask("/v1/chat/completions", model=BYTES, messages=HI)
            assert (status, answer["error"]["param"]) == (400, "messages")
            assert (await of.ask("/tokenize", model=BYTES, messages=HI))[0] == 400
            _, _, body = await of.request(
                "POST", "/v1/chat/completions", {"model": MODEL, "messages": HI, "stream": True}
            )
            events = events_of(body)
            said = [event["choices"][0]["delta"].get("content", "") for event in events[:-1]]  # type: ignore[index,call-overload]
            assert ("".join(said), events[-1]) == (SAID, "[DONE]")

    run(main)


def test_ids_beyond_the_vocabulary_and_prompts_beyond_the_context_are_those_of_the_model(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as of:
            beyond = [VOCAB_SIZE]
            assert (await of.ask("/v1/completions", model=MODEL, prompt=beyond))[0] == 200
            status, answer = await of.ask("/v1/completions", model=BYTES, prompt=beyond)
            assert (status, answer["error"]["param"]) == (400, "prompt")
            long = [5] * 1000
            assert (await of.ask("/v1/completions", model=BYTES, prompt=long))[0] == 200
            status, answer = await of.ask("/v1/completions", model=MODEL, prompt=long)
            assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")

    run(main)


def test_an_alias_and_a_version_lead_to_the_model_and_the_answer_is_called_as_it_was_asked_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as of:
            for asked, named, model, version in (
                ("bytes", "bytes", BYTES, ""),
                ("bytes@b", "bytes", BYTES, "b"),
                ("gpt-4o-mini@2", "gpt-4o-mini", MODEL, "2"),
                (f"{MODEL}@1", MODEL, MODEL, "1"),
            ):
                status, answer = await of.ask("/v1/completions", model=asked, prompt="x")
                assert (status, answer["model"]) == (200, named)
                request = of.service.requests[-1]
                assert (request.model, request.version) == (model, version)
                assert (await of.ask("/tokenize", model=asked, prompt="x"))[0] == 200

    run(main)


def test_an_unknown_name_is_a_404_that_lists_what_there_is_the_nearest_first(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as of:
            for path in ("/v1/completions", "/tokenize"):
                status, answer = await of.ask(path, model="byte", prompt="x")
                assert (status, answer["error"]["code"], answer["error"]["param"]) == (404, "model_not_found", "model")
                assert answer["error"]["message"] == (
                    "The model 'byte' does not exist; this server has 'bytes', 'org/bytes', "
                    f"'{MODEL}', 'gpt-4o-mini', 'b'."
                )
            _, answer = await of.ask("/v1/completions", model="gpt-4o-mini@9", prompt="x")
            assert answer["error"]["message"] == (
                f"The model 'gpt-4o-mini@9' does not exist; this server has '{MODEL}' as '{MODEL}@1', '{MODEL}@2'."
            )
            _, answer = await of.ask("/v1/models/none@1")
            assert answer["error"]["code"] == "model_not_found"

    run(main)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": HI}),
        ("/tokenize", {"prompt": "x"}),
        ("/detokenize", {"tokens": [1]}),
    ],
)
def test_where_there_are_several_a_request_without_a_model_is_told_which(
    path: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    async def main() -> None:
        async with site(tmp_path) as of:
            status, answer = await of.ask(path, **fields)
            assert (status, answer["error"]["code"]) == (400, "missing_required_parameter")
            message = answer["error"]["message"]
            assert message.startswith("Missing required parameter: 'model'; this server has 'demo'")
            of.front.remove_model(BYTES)
            status, answer = await of.ask(path, **fields)
            if path.startswith("/v1/"):
                assert answer["error"]["message"] == "Missing required parameter: 'model'."
            else:
                assert status == 200

    run(main)


def test_models_are_listed_with_their_aliases_versions_and_states(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as of:
            assert isinstance(of.service, ManyModels)
            _, models = await of.ask("/v1/models")
            cards = {card["id"]: card for card in models["data"]}
            assert list(cards) == [MODEL, f"{MODEL}@1", f"{MODEL}@2", "gpt-4o-mini", BYTES, "bytes", "b"]
            assert {name: card["parent"] for name, card in cards.items()} == {
                **dict.fromkeys((MODEL, BYTES)),
                **dict.fromkeys((f"{MODEL}@1", f"{MODEL}@2", "gpt-4o-mini"), MODEL),
                **dict.fromkeys(("bytes", "b"), BYTES),
            }
            assert all(card["root"] == (card["parent"] or name) for name, card in cards.items())
            assert {(card["max_model_len"], *card["versions"]) for card in cards.values()} == {
                (512, "1", "2"),
                (4096, "b"),
            }
            assert {card["state"] for card in cards.values()} == {"serving"}
            for name, path in (
                (BYTES, BYTES),
                (BYTES, "org%2Fbytes"),
                ("bytes", "bytes"),
                (f"{MODEL}@1", f"{MODEL}%401"),
            ):
                assert await of.ask(f"/v1/models/{path}") == (200, cards.get(name, {**cards[BYTES], "id": name}))
            of.service.versions_by_model[BYTES] = ()
            assert (await of.ask("/v1/models/bytes"))[1]["state"] == "loading"
            of.front.catalog.entry(BYTES).wants_workers = False
            assert (await of.ask("/v1/models/bytes"))[1]["state"] == "cold"

    run(main)


def test_a_model_that_leaves_begins_nothing_new_and_one_that_is_gone_is_unknown(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as of:
            of.front.catalog.entry(BYTES).is_leaving = True
            status, answer = await of.ask("/v1/completions", model="bytes", prompt="x")
            assert (status, answer["error"]["code"]) == (404, "model_not_found")
            assert "is being removed" in answer["error"]["message"]
            assert (await of.ask("/v1/models/bytes"))[1]["state"] == "leaving"
            of.front.remove_model(BYTES)
            status, answer = await of.ask("/v1/completions", model="bytes", prompt="x")
            assert answer["error"]["message"].endswith(f"this server has '{MODEL}', 'gpt-4o-mini'.")
            assert (await of.ask("/v1/completions", model=MODEL, prompt="x"))[0] == 200

    run(main)


def test_a_key_sees_and_uses_only_its_models_by_whatever_name(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path, has_keys=True) as of:
            _, models = await of.ask("/v1/models", "chatter")
            assert [card["id"] for card in models["data"]] == [MODEL, f"{MODEL}@1", f"{MODEL}@2", "gpt-4o-mini"]
            assert (await of.ask("/v1/models", "nobody"))[1]["data"] == []
            assert (await of.ask("/v1/completions", "chatter", model="gpt-4o-mini", prompt="x"))[0] == 200
            for name in (BYTES, "bytes", "bytes@b"):
                for path, fields in (
                    ("/v1/completions", {"prompt": "x"}),
                    ("/tokenize", {"prompt": "x"}),
                    ("/detokenize", {"tokens": [1]}),
                ):
                    status, answer = await of.ask(path, "chatter", model=name, **fields)
                    assert (status, answer["error"]["code"]) == (403, "model_not_allowed")
            assert (await of.ask("/v1/models/bytes", "chatter"))[0] == 403
            _, answer = await of.ask("/v1/completions", "chatter", model="byte", prompt="x")
            assert answer["error"]["message"].endswith(f"this server has '{MODEL}', 'gpt-4o-mini'.")
            _, answer = await of.ask("/v1/completions", "nobody", model="byte", prompt="x")
            assert answer["error"]["message"].endswith("this server has no model that this API key may use.")

    run(main)


def test_usage_and_counts_are_kept_by_the_name_of_the_model(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path, has_keys=True) as of:
            for name in (MODEL, "gpt-4o-mini", "bytes"):
                assert (await of.ask("/v1/completions", "boss", model=name, prompt="x"))[0] == 200
            _, usage = await of.ask("/v1/usage", "boss")
            assert {(one["key"], one["model"]): one["num_requests"] for one in usage["data"]} == {
                ("boss", MODEL): 2,
                ("boss", BYTES): 1,
            }
            counts = of.front.counts
            assert {name: sum(of_model.ends.values()) for name, of_model in counts.models.items()} == {
                MODEL: 2,
                BYTES: 1,
            }

    run(main)


def test_a_limit_for_one_model_holds_for_its_aliases_and_leaves_the_others_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path, has_keys=True) as of:
            keys = tmp_path / "keys.yaml"
            keys.write_text(
                f"keys:\n  - name: boss\n    sha256: '{digest_of(b'boss').hex()}'\n"
                f"    limits: {{{BYTES}: {{requests_per_minute: 1}}}}\n"
            )
            of.access.keys.open()
            assert (await of.ask("/v1/completions", "boss", model=BYTES, prompt="x"))[0] == 200
            status, answer = await of.ask("/v1/completions", "boss", model="bytes", prompt="x")
            assert (status, answer["error"]["code"]) == (429, "rate_limit_exceeded")
            assert f"with the model '{BYTES}' may send 1 requests a minute" in answer["error"]["message"]
            for _ in range(3):
                assert (await of.ask("/v1/completions", "boss", model=MODEL, prompt="x"))[0] == 200

    run(main)


def test_the_pages_for_people_name_the_models_that_there_are(tmp_path: Path) -> None:
    async def main() -> None:
        async with site(tmp_path) as of:

            async def examples() -> list[str]:
                _, document = await of.ask("/openapi.json")
                shown: list[str] = document["components"]["schemas"]["CompletionRequest"]["properties"]["model"][
                    "examples"
                ]
                return shown

            assert (await of.ask("/"))[1]["models"] == await examples() == [MODEL, BYTES]
            _, _, home = await of.request("GET", "/", None, {"Accept": "text/html"})
            assert f"models <code>{MODEL}</code>, <code>{BYTES}</code>" in home.decode()
            of.front.remove_model(BYTES)
            assert [(await of.ask("/"))[1]["model"]] == await examples() == [MODEL]

    run(main)
