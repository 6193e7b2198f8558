"""Clients of a real cluster: many at once, some of whom leave, and an account of how each request ended."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tests.support.e2e.streams import said_by
from tests.support.faults.drawn_seeds import Drawn
from tests.support.faults.jobs import MESSAGES, RESPONSES, Job

# How a request may end while processes die: what the API promises for it, and nothing else.
HONEST_ERRORS = frozenset({"worker_failed", "queue_timeout", "queue_full", "shutting_down"})


@dataclass
class Answer:
    """What a client saw. `end`: finished, error, broken (the connection), left (by the client), late."""

    end: str
    status: int = 0
    texts: dict[int, str] = field(default_factory=dict)
    finishes: list[tuple[int, str]] = field(default_factory=list)
    code: str = ""
    detail: str = ""
    id: str = ""
    num_events: int = 0


class BrokenError(Exception):
    """The connection ended before the answer did."""


class LeftError(Exception):
    """The client has gone, as planned."""


async def ask(url: str, job: Job, salt: str, stream: bool, deadline_s: float, leave_after: int | None = None) -> Answer:
    """One request on its own connection. With `leave_after` the client resets it when so many events (or, of a whole
    answer, tenths of a second) have come; 0: at once."""
    answer = Answer("late")
    try:
        async with asyncio.timeout(deadline_s):
            await _converse(url, job, salt, stream, leave_after, answer)
    except TimeoutError:
        answer.detail = f"nothing for {deadline_s:g} s after {answer.num_events} events"
    except LeftError:
        answer.end = "left"
    except (BrokenError, OSError, asyncio.IncompleteReadError) as error:
        answer.end, answer.detail = "broken", f"{type(error).__name__}: {error}"
    return answer


async def _converse(url: str, job: Job, salt: str, stream: bool, leave_after: int | None, answer: Answer) -> None:
    at = urlsplit(url)
    reader, writer = await asyncio.open_connection(at.hostname, at.port, limit=1 << 22)
    try:
        body = job.body(salt, stream)
        head = f"POST {job.path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
        if leave_after == -1:
            raise LeftError  # in the middle of the request
        writer.write(body)
        if leave_after == 0:
            raise LeftError
        if leave_after is not None and not stream:
            await asyncio.sleep(leave_after / 10)
            raise LeftError
        status_line = await reader.readline()
        if not status_line:
            raise BrokenError("no answer")
        answer.status = int(status_line.split()[1])
        fields = {}
        while (line := await reader.readline()).strip():
            name, _, value = line.decode("latin-1").partition(":")
            fields[name.lower()] = value.strip()
        if answer.status != 200 or not stream:
            if "content-length" not in fields:
                raise BrokenError("headers broke off")
            _take_whole(answer, json.loads(await reader.readexactly(int(fields["content-length"]))))
            return
        await _read_events(reader, job, leave_after, answer)
    finally:
        if answer.end == "late":
            # No farewell: the other side gets a reset.
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()


async def _read_events(reader: asyncio.StreamReader, job: Job, leave_after: int | None, answer: Answer) -> None:
    while True:
        line = await reader.readline()
        if not line:
            raise BrokenError(f"the stream broke off after {answer.num_events} events")
        if not line.startswith(b"data: "):
            continue  # chunk sizes and empty lines
        if line.startswith(b"data: [DONE]"):
            answer.end = answer.end if answer.code else "finished"
            return
        event = json.loads(line[6:])
        answer.num_events += 1
        if "error" in event:
            _take_error(answer, event["error"])
            return
        if job.path == MESSAGES:
            _take_part(answer, event)
            if event["type"] == "message_stop":
                answer.end = "finished"
                return
        elif job.path == RESPONSES:
            if _take_response_event(answer, event):
                return
        else:
            answer.id = event["id"]
        for choice in event.get("choices", []):
            text = choice.get("text") or said_by(choice.get("delta", {}))
            answer.texts[choice["index"]] = answer.texts.get(choice["index"], "") + text
            if choice["finish_reason"] is not None:
                answer.finishes.append((choice["index"], choice["finish_reason"]))
        if leave_after is not None and answer.num_events >= leave_after:
            raise LeftError


def _take_part(answer: Answer, event: dict[str, Any]) -> None:
    """An event of Anthropic's API."""
    match event:
        case {"type": "message_start", "message": {"id": answer_id}}:
            answer.id, answer.texts[0] = answer_id, ""
        case {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}:
            answer.texts[0] += text
        case {"type": "message_delta", "delta": {"stop_reason": reason}}:
            answer.finishes.append((0, reason))


def _take_response_event(answer: Answer, event: dict[str, Any]) -> bool:
    """Whether it was the last one. Raises BrokenError if events are missing, or came twice."""
    if event["sequence_number"] != answer.num_events - 1:
        raise BrokenError(f"event {event['sequence_number']} came as number {answer.num_events - 1}")
    match event:
        case {"type": "response.created", "response": {"id": answer_id}}:
            answer.id, answer.texts[0] = answer_id, ""
        case {"type": "response.output_text.delta", "delta": text}:
            answer.texts[0] += text
        case {"type": "response.completed" | "response.incomplete", "response": response}:
            _take_response(answer, response)
            return True
        case {"type": "response.failed", "response": {"error": error}}:
            _take_error(answer, error)
            return True
    return False


def _take_response(answer: Answer, response: dict[str, Any]) -> None:
    text = "".join([part["text"] for item in response["output"] for part in item["content"]])
    if answer.texts.setdefault(0, text) != text:
        raise BrokenError(f"the events said {answer.texts[0]!r} and the response {text!r}")
    answer.finishes.append((0, response["status"]))
    answer.end = "finished"


def _take_whole(answer: Answer, body: dict[str, Any]) -> None:
    if answer.status != 200:
        _take_error(answer, body["error"])
        return
    answer.id = body["id"]
    if body.get("object") == "response":
        _take_response(answer, body)
        return
    if body.get("type") == "message":
        answer.texts[0] = "".join([block["text"] for block in body["content"] if block["type"] == "text"])
        answer.finishes.append((0, body["stop_reason"]))
        answer.end = "finished"
        return
    for choice in body["choices"]:
        answer.texts[choice["index"]] = choice["text"] if "text" in choice else said_by(choice["message"])
        answer.finishes.append((choice["index"], choice["finish_reason"]))
    answer.end = "finished"


def _take_error(answer: Answer, error: dict[str, Any]) -> None:
    code = error["code"] if "code" in error else error["details"]["error_code"]
    answer.end, answer.code, answer.detail = "error", str(code), str(error["message"])


async def learn(url: str, jobs: Sequence[Job], num_clients: int) -> list[Job]:
    """The jobs with their undisturbed answers: each asked for twice, whole and as a stream. Those whose seed is drawn
    stay as they are."""
    room = asyncio.Semaphore(num_clients)

    async def one(job: Job) -> Job:
        if job.seed_is_drawn:
            return job
        async with room:
            whole = await ask(url, job, f"undisturbed {job.number}", False, 120)
            stream = await ask(url, job, f"undisturbed stream {job.number}", True, 120)
        assert whole.end == stream.end == "finished", (whole, stream)
        assert whole.texts == stream.texts, f"job {job.number}: stream and whole answer differ"
        assert sorted(whole.finishes) == sorted(stream.finishes), f"job {job.number}: stream and whole end differently"
        return job.answered(whole.texts, dict(whole.finishes))

    return await asyncio.gather(*(one(job) for job in jobs))


@dataclass
class Account:
    """How the requests of a run have ended. `wrong`: what must not be, in a sentence each."""

    ends: Counter[str] = field(default_factory=Counter)
    finished: Counter[str] = field(default_factory=Counter)  # whole answers by what kind of request it was
    wrong: list[str] = field(default_factory=list)
    drawn: list[Drawn] = field(default_factory=list)  # whole answers whose seed the router has drawn
    slowest_s: float = 0.0

    @property
    def num_requests(self) -> int:
        return self.ends.total()


class Load:
    """Clients that ask one request after the other until `stop`."""

    def __init__(self, url: str, jobs: Sequence[Job], rng: random.Random, num_clients: int, deadline_s: float) -> None:
        self.account = Account()
        self._url, self._jobs, self._rng = url, jobs, rng
        self._deadline_s = deadline_s
        self._stopping = False
        self._num_asked = 0
        self._clients = [asyncio.create_task(self._live()) for _ in range(num_clients)]

    async def stop(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._clients)

    async def _live(self) -> None:
        while not self._stopping:
            rng = self._rng
            job, stream = rng.choice(self._jobs), rng.random() < 0.6
            leave_after = rng.choice((-1, 0, 1, 2, 5, 20)) if rng.random() < 0.12 else None
            self._num_asked += 1
            salt = f"{self._num_asked}" if rng.random() < 0.6 else "shared"
            begin_s = time.monotonic()
            answer = await ask(self._url, job, salt, stream, self._deadline_s, leave_after)
            self._judge(job, answer, time.monotonic() - begin_s)
            if answer.code in ("queue_full", "shutting_down"):
                await asyncio.sleep(0.2)  # as a client does after a Retry-After

    def _judge(self, job: Job, answer: Answer, took_s: float) -> None:
        account = self.account
        name = answer.end if answer.end != "error" else f"error {answer.status} {answer.code}"
        account.ends[name] += 1
        account.slowest_s = max(account.slowest_s, took_s)
        wrong = ""
        for choice, text in answer.texts.items():
            is_known = choice < job.num_choices and not job.seed_is_drawn
            if choice >= job.num_choices or (is_known and not job.texts[choice].startswith(text)):
                wrong = f"choice {choice} says other tokens than undisturbed: {text[-40:]!r}"
        indices = [choice for choice, _ in answer.finishes]
        if len(set(indices)) != len(indices):
            wrong = f"a choice ended twice: {answer.finishes}"
        if answer.end == "finished" and not wrong:
            if sorted(indices) != list(range(job.num_choices)):
                wrong = f"200 without an end of each choice: {answer.finishes}"
            elif job.seed_is_drawn:
                account.drawn.append(Drawn.of(answer.id, job, answer.texts, answer.finishes))
            elif tuple(answer.texts.get(choice, "") for choice in range(job.num_choices)) != job.texts:
                wrong = "finished with less text than undisturbed"
            elif tuple(reason for _, reason in sorted(answer.finishes)) != job.finishes:
                wrong = f"ended otherwise than undisturbed: {answer.finishes}"
            account.finished[job.kind] += 1
        elif answer.end == "late":
            wrong = f"a hang: {answer.detail}"
        elif answer.end == "broken":
            wrong = f"the connection broke: {answer.detail}"
        elif answer.end == "error" and answer.code not in HONEST_ERRORS:
            wrong = f"status {answer.status} {answer.code}: {answer.detail}"
        if wrong:
            account.wrong.append(f"job {job.number} after {took_s:.1f} s: {wrong}")
