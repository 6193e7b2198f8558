"""Two versions of this program understand each other: recorded frames of older ones, and a made-up newer one."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import msgpack
import pytest

from slipstream import __version__
from slipstream.router.config.router_config import RouterConfig
from slipstream.router.dispatch.service import GenerationService
from slipstream.router.protocol import messages
from slipstream.router.protocol.generation import GenerateRequest
from slipstream.router.protocol.messages import (
    OLDEST_PROTOCOL_VERSION,
    PROTOCOL_VERSION,
    Adopt,
    Credits,
    EngineRequest,
    Generate,
    GrammarKind,
    GrammarSpec,
    Pong,
    Prefill,
    Reserve,
    RouterMessage,
    SamplingParams,
)
from slipstream.router.protocol.older_peers import for_0_1_0
from slipstream.router.protocol.wire import (
    TYPE_CODES,
    FrameProtocol,
    FrameReader,
    WireError,
    decode_payload,
    encode_frame,
)
from tests.support.router.golden_frames import plain, sample
from tests.support.router.greetings import make_hello

RECORDED = sorted((Path(__file__).parent / "frames").glob("*.json"))
NEWER = "a field that only a newer peer has"


def goes_on_from(recorded: Any, decoded: Any) -> bool:
    """Whether decoded fields begin with the recorded ones, at every depth; what follows are newer fields."""
    if not isinstance(recorded, list):
        return bool(recorded == decoded)
    return len(decoded) >= len(recorded) and all(map(goes_on_from, recorded, decoded))


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: file.stem)
def test_every_recorded_frame_of_an_older_version_is_read(file: Path) -> None:
    recorded = json.loads(file.read_text())
    assert recorded["protocol"] >= OLDEST_PROTOCOL_VERSION, (
        f"{file.name} is of a version that is not supported any more"
    )
    for frame in recorded["frames"]:
        [message] = FrameReader().feed(bytes.fromhex(frame["frame"]))
        assert type(message).__name__ == frame["kind"]
        assert goes_on_from(frame["fields"], plain(message)), frame["kind"]


@pytest.mark.skipif(OLDEST_PROTOCOL_VERSION > 4, reason="0.1.0 is too old to be spoken to")
def test_a_worker_of_0_1_0_gets_the_exact_fields_that_it_demands() -> None:
    """If this fails because a message to workers has got another field, leave it out in `for_0_1_0`, or raise
    OLDEST_PROTOCOL_VERSION to 5."""
    recorded = json.loads((Path(__file__).parent / "frames/0.1.0.json").read_text())
    frames = {frame["kind"]: frame["frame"] for frame in recorded["frames"]}
    for kind in get_args(RouterMessage):
        if kind.__name__ in frames:
            assert encode_frame(for_0_1_0(unrestricted(sample(kind)))).hex() == frames[kind.__name__], kind.__name__


def test_a_worker_of_0_1_0_refuses_a_request_that_it_would_answer_wrongly() -> None:
    message = sample(Generate)
    assert message.request.sampling.restrictions
    scored = unrestricted(message)
    scored = scored._replace(request=scored.request._replace(sampling=SamplingParams(7, prompt_logprobs=0)))
    for asked in (message, scored):
        assert EngineRequest(*for_0_1_0(asked).request).sampling[0] == 0  # max_tokens


def test_a_worker_of_0_1_0_answers_freely_where_it_knows_no_such_grammar() -> None:
    message = unrestricted(sample(Generate))
    cases: tuple[tuple[GrammarKind, bool], ...] = (("output", False), ("json", True))
    for kind, is_kept in cases:
        grammar = GrammarSpec(kind, "{}")
        sampling = message.request.sampling._replace(grammar=grammar)
        sent = for_0_1_0(message._replace(request=message.request._replace(sampling=sampling)))
        assert SamplingParams(*EngineRequest(*sent.request).sampling).grammar == (grammar if is_kept else None)


def unrestricted(message: Any) -> Any:
    """The message without what such a worker cannot serve."""
    if not isinstance(message, Adopt | Generate | Reserve | Prefill):
        return message
    nothing = {"allowed_token_ids": b"", "bad_words": (), "logits_processors": (), "prompt_logprobs": None}
    sampling = message.request.sampling._replace(**nothing)
    request = message.request._replace(sampling=sampling)
    return (
        dataclasses.replace(message, request=request)
        if isinstance(message, Adopt)
        else message._replace(request=request)
    )


def as_newer(hint: Any, value: Any) -> Any:
    """A value as a newer peer would send it: every record in it has one more field."""
    if value is None:
        return None
    if dataclasses.is_dataclass(hint) or (isinstance(hint, type) and issubclass(hint, tuple)):
        parts = get_type_hints(hint).items()
        return [*(as_newer(part, getattr(value, name)) for name, part in parts), NEWER]
    args = get_args(hint)
    if get_origin(hint) is tuple:
        hints = [args[0]] * len(value) if args[-1] is Ellipsis else args
        return list(map(as_newer, hints, value))
    inner = [part for part in args if part is not NoneType]
    return as_newer(inner[0], value) if len(inner) == 1 and len(args) == 2 else value


@pytest.mark.parametrize("kind", TYPE_CODES, ids=lambda kind: kind.__name__)
def test_fields_that_only_a_newer_peer_has_are_left_out(kind: type) -> None:
    message = sample(kind)
    payload = msgpack.packb([TYPE_CODES[kind], *as_newer(kind, message)])
    assert decode_payload(payload) == message


@pytest.mark.parametrize("kind", TYPE_CODES, ids=lambda kind: kind.__name__)
def test_fields_that_an_older_peer_lacks_get_their_defaults_and_others_are_missed_by_name(kind: type) -> None:
    fields = plain(sample(kind))
    payload = msgpack.unpackb(encode_frame(sample(kind))[4:])
    num_defaults = _num_defaults(kind)
    least = len(fields) - num_defaults
    for num_fields in range(len(fields)):
        cut = msgpack.packb(payload[: 1 + num_fields])
        if num_fields >= least:
            decoded = decode_payload(cut)
            assert plain(decoded)[:num_fields] == fields[:num_fields]
            assert type(decoded) is kind
        else:
            with pytest.raises(WireError, match=f"{kind.__name__}: expected an array of {least}"):
                decode_payload(cut)


def _num_defaults(kind: type) -> int:
    if dataclasses.is_dataclass(kind):
        missing = dataclasses.MISSING
        return sum(f.default is not missing or f.default_factory is not missing for f in dataclasses.fields(kind))
    return len(kind._field_defaults)  # type: ignore[attr-defined]


def test_the_greeting_of_0_1_0_means_that_it_speaks_its_own_version_alone() -> None:
    recorded = json.loads((Path(__file__).parent / "frames/0.1.0.json").read_text())
    [hello] = FrameReader().feed(bytes.fromhex(recorded["frames"][0]["frame"]))
    assert isinstance(hello, messages.Hello)
    assert (hello.oldest_version, hello.build, hello.layout) == (0, messages.Build(), messages.PageLayout())


def unknown_frame(code: int = 200) -> bytes:
    payload: bytes = msgpack.packb([code, "anything", [1, 2]])
    return len(payload).to_bytes(4, "little") + payload


def test_a_kind_of_message_that_only_a_newer_peer_has_is_left_out_with_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reader = FrameReader()
    reader.trust()
    stream = encode_frame(Pong(1)) + unknown_frame() + encode_frame(Credits(1, 2, 3, 4)) + unknown_frame()
    with caplog.at_level(logging.WARNING):
        cut = len(encode_frame(Pong(1))) + 3  # within the unknown one
        received = [*reader.feed(stream[:cut]), *reader.feed(stream[cut:])]
    assert received == [Pong(1), Credits(1, 2, 3, 4)]
    assert [record.getMessage() for record in caplog.records] == [
        "leaving out messages of type 200, which a newer peer has and this version does not"
    ]


def test_a_stranger_is_not_trusted_with_unknown_messages() -> None:
    with pytest.raises(WireError, match="unknown message type 200"):
        list(FrameReader().feed(unknown_frame()))


class NewerWorker:
    """A worker of a version to come, on a connection to a router of this one: each of its records has a field more, and
    it sends messages of an unknown kind."""

    def __init__(self) -> None:
        self.inbox: asyncio.Queue[Any] = asyncio.Queue()
        self._transport: asyncio.Transport | None = None
        self._protocol = FrameProtocol(self.inbox.put_nowait, lambda reason: self.inbox.put_nowait(reason))

    async def connect(self, service: GenerationService) -> None:
        transport, _ = await asyncio.get_running_loop().create_connection(
            lambda: self._protocol, *service.worker_port.address
        )
        self._transport = transport

    def send(self, message: Any, after: bytes = b"") -> None:
        payload = msgpack.packb([TYPE_CODES[type(message)], *as_newer(type(message), message)])
        assert self._transport is not None
        self._transport.write(len(payload).to_bytes(4, "little") + payload + after)

    async def next(self, kind: type) -> Any:
        while type(message := await self.inbox.get()) is not kind:
            assert isinstance(message, messages.Ping | messages.ServiceLevel), message
        return message


def newer_hello(**fields: Any) -> messages.Hello:
    hello = make_hello("d", token="secret", version=PROTOCOL_VERSION + 1, oldest_version=PROTOCOL_VERSION)
    return dataclasses.replace(hello, build=messages.Build(slipstream="99.0.0"), **fields)


def with_service(scenario: Callable[[GenerationService], Awaitable[None]]) -> None:
    async def main() -> None:
        service = GenerationService(RouterConfig(), models={"m": RouterConfig().dispatch}, token="secret")
        await service.start()
        try:
            await asyncio.wait_for(scenario(service), 30)
        finally:
            await service.close()

    asyncio.run(main())


def test_a_newer_worker_serves_a_request_of_this_router() -> None:
    async def scenario(service: GenerationService) -> None:
        worker = NewerWorker()
        await worker.connect(service)
        worker.send(newer_hello())
        await worker.next(messages.Welcome)
        worker.send(Credits(0, 4, 100, 1000), after=unknown_frame())
        stream = service.submit(GenerateRequest("r", [7] * 5, SamplingParams(max_tokens=2)))
        generate = await worker.next(messages.Generate)
        assert generate.request.request_id == "r"
        chunk = messages.TokenChunk("r", 0, 0, (5, 6), finish_reason="length")
        worker.send(messages.StepOutput((chunk,)))
        assert [token_id async for delta in stream for token_id, _ in delta] == [5, 6]
        assert service.snapshot_of("m").drift == (
            f"protocol is {PROTOCOL_VERSION} on the router and {PROTOCOL_VERSION + 1} on d",
            f"slipstream is {__version__} on the router and 99.0.0 on d",
        )

    with_service(scenario)


def test_a_worker_that_is_too_new_is_refused_by_name() -> None:
    async def scenario(service: GenerationService) -> None:
        worker = NewerWorker()
        await worker.connect(service)
        worker.send(newer_hello(oldest_version=PROTOCOL_VERSION + 1))
        rejected = await worker.next(messages.Rejected)
        assert rejected.reason == (
            f"worker d (Slipstream 99.0.0) speaks version {PROTOCOL_VERSION + 1} of the protocol, "
            f"this router {OLDEST_PROTOCOL_VERSION} to {PROTOCOL_VERSION}"
        )

    with_service(scenario)


def test_the_documentation_has_every_version() -> None:
    page = (Path(__file__).parents[3] / "docs" / "protocol" / "README.md").read_text(encoding="utf-8")
    rows = [int(number) for number in re.findall(r"^\| (\d+) \| \d+\.\d+ \|", page, re.MULTILINE)]
    assert rows == list(range(OLDEST_PROTOCOL_VERSION, PROTOCOL_VERSION + 1))
    assert f"The protocol has a number, now {PROTOCOL_VERSION}." in page
