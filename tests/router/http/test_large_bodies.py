"""Bodies that arrive in places of the handler's choice."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.router.http.http_error import HttpError
from slipstream.router.http.large_body import STEP_BYTES
from slipstream.router.http.reader import STRANGERS_BODY_BYTES, Request, RequestReader

MAX_BODY_BYTES = 1 << 20
LARGE_BYTES = STRANGERS_BODY_BYTES + 10


@dataclass(eq=False)
class Place:
    memory: bytearray
    is_released: bool = False
    num_ready: int = 0
    limit_bytes: int = 1 << 30

    @property
    def view(self) -> memoryview:
        return memoryview(self.memory)

    def grow(self, num_bytes: int) -> bool:
        assert self.num_ready < num_bytes <= len(self.memory)
        if num_bytes > self.limit_bytes:
            return False
        self.num_ready = num_bytes
        return True

    def release(self) -> None:
        self.is_released = True


@dataclass
class Places:
    """Gives a place for bodies at /placed."""

    given: list[Place] = field(default_factory=list)

    def chunked_limit_bytes(self, path: str) -> int | None:
        return 2 * MAX_BODY_BYTES if path == "/placed" else None

    def place_for(self, path: str, num_bytes: int, headers: list[tuple[bytes, bytes]]) -> Place | None:
        if path == "/full":
            raise HttpError(503, "There is no memory.")
        if path not in ("/placed", "/bounded"):
            return None
        self.given.append(Place(bytearray(num_bytes)))
        if path == "/bounded":
            self.given[-1].limit_bytes = 2 * STEP_BYTES
        return self.given[-1]


def message(path: bytes, body: bytes) -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (path, len(body), body)


def bytes_of(request: Request | HttpError) -> bytes:
    assert isinstance(request, Request)
    return bytes(request.large_body.view) if request.large_body is not None else request.body


def read(reader: RequestReader, data: bytes, cuts: list[int]) -> list[Request | HttpError]:
    """What comes of `data`, which arrives in pieces: into the place of a body as soon as there is one."""
    arrived: deque[Request | HttpError] = deque()
    for begin, end in pairwise([0, *sorted(cuts), len(data)]):
        piece = data[begin:end]
        while piece:
            room = reader.body_room
            if room is None:
                arrived += reader.feed(piece)
                break
            part, piece = piece[: len(room)], piece[len(room) :]
            room[: len(part)] = part
            arrived += reader.filled(len(part))
    return list(arrived)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_requests_are_the_same_however_their_bytes_arrive(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from([(b"/placed", LARGE_BYTES), (b"/other", LARGE_BYTES), (b"/placed", 9)])))
    bodies = [bytes([number % 251]) * size for number, (_, size) in enumerate(kinds)]
    sent = b"".join(message(path, body) for (path, _), body in zip(kinds, bodies, strict=True))
    cuts = data.draw(st.lists(st.integers(0, len(sent)), max_size=12))
    places = Places()
    reader = RequestReader(8192, MAX_BODY_BYTES, body_places=places)
    arrived = read(reader, sent, cuts)
    assert [bytes_of(request) for request in arrived] == bodies
    assert len(places.given) == kinds.count((b"/placed", LARGE_BYTES))
    assert reader.state == "idle"


def test_a_body_whose_length_is_not_known_has_the_limit_of_its_path() -> None:
    def arrives(path: bytes, num_bytes: int) -> bool:
        head = b"POST %b HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % path
        chunk = bytes(num_bytes // 4)
        (arrived,) = reader.feed(head + (b"%x\r\n%b\r\n" % (len(chunk), chunk)) * 4 + b"0\r\n\r\n")
        return isinstance(arrived, Request) and len(arrived.body) == num_bytes

    reader = RequestReader(8192, MAX_BODY_BYTES, body_places=Places())
    assert arrives(b"/placed", 2 * MAX_BODY_BYTES)
    assert arrives(b"/other", MAX_BODY_BYTES)
    assert not arrives(b"/other", 2 * MAX_BODY_BYTES)
    reader = RequestReader(8192, MAX_BODY_BYTES, body_places=Places())
    assert not arrives(b"/placed", 2 * MAX_BODY_BYTES + 4)


def test_a_place_has_no_limit_of_its_own_and_other_bodies_keep_theirs() -> None:
    body = bytes(MAX_BODY_BYTES + 1)
    reader = RequestReader(8192, MAX_BODY_BYTES, body_places=Places())
    assert len(bytes_of(read(reader, message(b"/placed", body), [])[0])) == len(body)
    (refused,) = read(reader, message(b"/other", body), [300])
    assert isinstance(refused, HttpError)
    assert refused.status == 413


@pytest.mark.parametrize("end", ["close", "refuse"])
def test_a_place_is_released_if_its_body_never_comes_whole(end: str) -> None:
    places = Places()
    reader = RequestReader(8192, MAX_BODY_BYTES, body_places=places)
    assert read(reader, message(b"/placed", bytes(LARGE_BYTES))[:-1], [200]) == []
    if end == "close":
        reader.close()
    else:
        reader.refuse(HttpError(408, "It did not come in time."))
    assert [place.is_released for place in places.given] == [True]


def test_a_body_without_memory_is_refused_before_it_comes() -> None:
    reader = RequestReader(8192, MAX_BODY_BYTES, body_places=Places())
    (refused,) = reader.feed(message(b"/full", bytes(LARGE_BYTES))[:100])
    assert isinstance(refused, HttpError)
    assert refused.status == 503


def test_strangers_get_no_place() -> None:
    def refuse(authorization: bytes) -> None:
        raise HttpError(401, "Who are you?")

    places = Places()
    reader = RequestReader(8192, MAX_BODY_BYTES, refuse, body_places=places)
    (refused,) = reader.feed(message(b"/placed", bytes(LARGE_BYTES)))
    assert isinstance(refused, HttpError)
    assert (refused.status, places.given) == (401, [])


def test_memory_is_made_as_a_body_arrives() -> None:
    places = Places()
    reader = RequestReader(1 << 16, MAX_BODY_BYTES, body_places=places)
    sent = message(b"/placed", bytes(3 * STEP_BYTES))
    read(reader, sent[:1000], [])
    (place,) = places.given
    assert place.num_ready <= STEP_BYTES + 1000
    arrived = read(reader, sent[1000:], [STEP_BYTES, STEP_BYTES + 7])
    assert [len(bytes_of(request)) for request in arrived] == [3 * STEP_BYTES]


@pytest.mark.parametrize("is_fed", [True, False])
def test_a_body_whose_memory_ends_is_refused_and_leaves_none_behind(is_fed: bool) -> None:
    places = Places()
    reader = RequestReader(1 << 16, MAX_BODY_BYTES, body_places=places)
    sent = message(b"/bounded", bytes(3 * STEP_BYTES))
    arrived = list(reader.feed(sent)) if is_fed else read(reader, sent, [100])
    (error,) = arrived
    assert isinstance(error, HttpError)
    assert (error.status, error.code) == (503, "memory_full")
    assert places.given[0].is_released
