"""Extensions add paths and see requests; what they may not do is refused by name."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from slipstream.router.api.exchange_context import ApiExchange, ApiRoutes, ExchangeContext
from slipstream.router.api.held_exchange import HeldExchange
from slipstream.router.extensions.extension import (
    CallRefusedError,
    EndedCall,
    Extension,
    ExtensionCall,
    ExtensionReply,
    ExtensionRoute,
)
from slipstream.router.extensions.loading import load_extensions
from slipstream.router.extensions.request_hooks import RequestHooks
from slipstream.router.http.http_error import HttpError
from slipstream.router.http.reader import Request


class Shouting(Extension):
    """Makes bodies upper-case, refuses silence, and keeps what has ended."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        if settings.get("volume", 1) < 0:
            raise ValueError(f"volume must not be negative, got {settings['volume']}")
        self.ended: list[tuple[str, int]] = []

    def routes(self) -> list[ExtensionRoute]:
        return [ExtensionRoute("POST", "/v1/shouts", self.shout)]

    async def shout(self, call: ExtensionCall) -> ExtensionReply:
        reply = await call.ask("/v1/echo", {"text": call.body.decode()})
        return ExtensionReply(reply.body + b"!", reply.status)

    async def before(self, call: ExtensionCall) -> None:
        if not call.body:
            raise CallRefusedError(422, "silence is refused", "silence")
        call.body = call.body.upper()

    def after(self, ended: EndedCall) -> None:
        self.ended.append((ended.call.path, ended.status))
        raise RuntimeError("this is logged, and its client has the answer")


NAME = f"{__name__}:Shouting"


async def echo(request: Request, exchange: ApiExchange) -> None:
    exchange.respond(200, json.dumps({"echo": json.loads(request.body)["text"]}).encode())


async def echo_item(request: Request, exchange: ApiExchange, item: str) -> None:
    exchange.respond(200, json.dumps({"echo": item}).encode())


def exchanged(path: str, body: bytes) -> tuple[Request, HeldExchange]:
    request = Request("POST", path, "", {b"x-one": b"1"}, body, keep_alive=True, http10=False)
    return request, HeldExchange(request, ExchangeContext())


def hooks_of(*extensions: Extension) -> tuple[RequestHooks, ApiRoutes]:
    routes = ApiRoutes()
    routes.add("POST", "/v1/echo", echo)
    return RequestHooks(extensions, routes), routes


def test_before_changes_a_body_and_after_sees_the_end() -> None:
    shouting = Shouting({})
    hooks, _ = hooks_of(shouting)
    request, exchange = exchanged("/v1/echo", b"hello")
    hooked = hooks.begin(request, exchange)
    asyncio.run(hooked.before())
    hooked.after(200)
    assert (request.body, shouting.ended) == (b"HELLO", [("/v1/echo", 200)])


def test_a_refusal_of_before_is_the_answer() -> None:
    hooks, _ = hooks_of(Shouting({}))
    with pytest.raises(HttpError, match="silence is refused") as caught:
        asyncio.run(hooks.begin(*exchanged("/v1/echo", b"")).before())
    assert (caught.value.status, caught.value.code) == (422, "silence")


class Ledger(Extension):
    """Counts what it lets pass and what has ended."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.passed: list[Mapping[str, str]] = []
        self.ended: list[int] = []

    async def before(self, call: ExtensionCall) -> None:
        self.passed.append(call.headers)

    def after(self, ended: EndedCall) -> None:
        self.ended.append(ended.status)


class OnlyAfter(Extension):
    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.ended: list[int] = []

    def after(self, ended: EndedCall) -> None:
        self.ended.append(ended.status)


class Refusing(Ledger):
    async def before(self, call: ExtensionCall) -> None:
        raise CallRefusedError(422, "refused")


class Failing(Ledger):
    async def before(self, call: ExtensionCall) -> None:
        raise RuntimeError("a fault")


@pytest.mark.parametrize(("refusing", "error"), [(Refusing({}), HttpError), (Failing({}), RuntimeError)])
def test_after_is_called_once_for_each_extension_whose_before_returned(
    refusing: Ledger, error: type[Exception]
) -> None:
    first, logging, last = Ledger({}), OnlyAfter({}), Ledger({})
    hooks, _ = hooks_of(first, logging, refusing, last)
    hooked = hooks.begin(*exchanged("/v1/echo", b""))
    with pytest.raises(error):
        asyncio.run(hooked.before())
    hooked.after(422)
    assert (first.passed, first.ended) == ([{"x-one": "1"}], [422])
    assert logging.ended == [422]
    assert (last.passed, last.ended, refusing.ended) == ([], [], [])


def test_a_path_of_an_extension_asks_other_paths() -> None:
    hooks, routes = hooks_of(Shouting({}))
    hooks.add_to(routes)
    request, exchange = exchanged("/v1/shouts", b"hi")
    asyncio.run(routes(request, exchange))
    assert (exchange.status, exchange.body) == (200, b'{"echo": "hi"}!')


def test_the_answer_of_a_path_that_is_not_there_is_an_error_and_no_exception() -> None:
    class Lost(Extension):
        def routes(self) -> list[ExtensionRoute]:
            return [ExtensionRoute("POST", "/v1/lost", self.lost)]

        async def lost(self, call: ExtensionCall) -> ExtensionReply:
            return await call.ask("/v1/nowhere", {})

    hooks, routes = hooks_of(Lost({}))
    assert hooks.is_empty
    hooks.add_to(routes)
    request, exchange = exchanged("/v1/lost", b"{}")
    asyncio.run(routes(request, exchange))
    assert (exchange.status, json.loads(exchange.body)["error"]["code"]) == (404, "not_found")


def test_a_path_of_the_router_cannot_be_replaced() -> None:
    hooks, routes = hooks_of(Shouting({}))
    hooks.add_to(routes)
    with pytest.raises(ValueError, match="Shouting adds /v1/shouts, which is there already"):
        hooks.add_to(routes)


def test_a_path_below_one_of_the_router_cannot_be_replaced() -> None:
    hooks, routes = hooks_of(Shouting({}))
    routes.add_item("GET", "/v1/sho", "", echo_item)
    with pytest.raises(ValueError, match="Shouting adds /v1/shouts, which is there already"):
        hooks.add_to(routes)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"nobody": None}, "there is no 'nobody'"),
        ({"no.module:Class": None}, "'no.module:Class' cannot be imported"),
        ({"json:Nothing": None}, "'json:Nothing' cannot be imported"),
        ({"json:JSONDecoder": None}, "'json:JSONDecoder' is no subclass"),
        ({":": None}, "':' is no module:Class"),
        ({"json:": None}, "'json:' is no module:Class"),
        ({":Class": None}, "':Class' is no module:Class"),
        ({".json:Class": None}, "'.json:Class' is no module:Class"),
        ({"json..x:Class": None}, "'json..x:Class' is no module:Class"),
    ],
)
def test_a_name_that_is_no_extension_is_refused(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=f"router.extensions: {reason}"):
        load_extensions(config)


def test_a_module_that_fails_is_named_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing_module.py").write_text("raise RuntimeError('no licence')")
    (tmp_path / "unwritten_module.py").write_text("def (")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match="'failing_module:X' cannot be imported: RuntimeError: no licence"):
        load_extensions({"failing_module:X": None})
    with pytest.raises(ValueError, match="'unwritten_module:X' cannot be imported: SyntaxError"):
        load_extensions({"unwritten_module:X": None})


def test_settings_that_cannot_be_are_refused_by_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shouting_module", sys.modules[__name__])
    assert isinstance(load_extensions({"shouting_module:Shouting": None})[0], Shouting)
    with pytest.raises(
        ValueError, match=r"router.extensions.shouting_module:Shouting: volume must not be negative, got -1"
    ):
        load_extensions({"shouting_module:Shouting": {"volume": -1}})
