"""Clients that read streams in the background, while a test does something to the cluster."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import openai
from openai.types import Completion

from tests.support.e2e.serving_cluster import ServingCluster

MODEL = "slipstream-demo"
# Greedy, and without the special tokens of the demo model (ids 0 to 8): so the text is as long as was asked for.
GREEDY: dict[str, Any] = {"temperature": 0, "logit_bias": {str(token_id): -100 for token_id in range(9)}}
ANSWER_TIMEOUT_S = 110.0


def client_of(serving: ServingCluster) -> openai.OpenAI:
    """The real client, which must not hide a failure by trying again."""
    return openai.OpenAI(
        base_url=serving.base_url + "/v1", api_key="not needed", max_retries=0, timeout=ANSWER_TIMEOUT_S
    )


def prompt_of(num_tokens: int, variant: int = 0) -> list[int]:
    """Token ids of the demo model's vocabulary, different from the first one on for each variant."""
    return [100 + (variant * 37 + position * 11 + position // 50) % 3000 for position in range(num_tokens)]


def complete(client: openai.OpenAI, prompt: str | list[int], max_tokens: int, salt: str = "", **fields: Any) -> str:
    """The text of a greedy completion. A new salt finds no prefix cached."""
    answer: Completion = client.completions.create(
        prompt=prompt,
        max_tokens=max_tokens,
        extra_body={"cache_salt": salt},
        **{"model": MODEL, **GREEDY, **fields},
    )
    return answer.choices[0].text


@dataclass(frozen=True)
class StreamError:
    """What ended a stream before its finish: an error of the API by its code, or, without a code, the connection."""

    code: str | None
    message: str


class BackgroundStream:
    """One streamed completion, greedy where `fields` do not say otherwise, read by a thread of its own; `regex` guides
    it. With `messages` in place of the prompt it is a chat, whose text has the calls of tools in it, as JSON. `error`
    says what broke it, if something did.

    It reads events with the standard library: the openai client takes 0.12 ms for each, so that four fast streams would
    leave the test far behind the cluster, and what it does in their midst would come after their end.
    """

    def __init__(
        self,
        serving: ServingCluster,
        prompt: str | list[int] = "",
        max_tokens: int = 16,
        salt: str = "",
        regex: str | None = None,
        **fields: Any,
    ) -> None:
        self._path = "/v1/chat/completions" if "messages" in fields else "/v1/completions"
        self._at = urlsplit(serving.base_url)
        grammar = {} if regex is None else {"guided_regex": regex}
        asked: dict[str, Any] = {"model": MODEL, "max_tokens": max_tokens, "stream": True, "cache_salt": salt}
        if "messages" not in fields:
            asked["prompt"] = prompt
        self._body = json.dumps({**asked, **grammar, **GREEDY, **fields}).encode()
        self._changed = threading.Condition()
        self._pieces: list[str] = []
        self._done = False
        self.finishes: list[str] = []
        self.error: StreamError | None = None
        self._thread = threading.Thread(target=self._read)

    def start(self) -> None:
        self._thread.start()

    def _read(self) -> None:
        try:
            with closing(
                http.client.HTTPConnection(self._at.hostname or "", self._at.port, timeout=ANSWER_TIMEOUT_S)
            ) as connection:
                connection.request("POST", self._path, self._body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                if answer.status == 200:
                    self._read_events(answer)
                else:
                    self._refused(json.loads(answer.read())["error"])
        except (OSError, http.client.HTTPException) as error:
            self.error = StreamError(None, f"{type(error).__name__}: {error}")
        finally:
            with self._changed:
                self._done = True
                self._changed.notify_all()

    def _read_events(self, answer: http.client.HTTPResponse) -> None:
        for line in answer:
            if line.startswith(b"data: [DONE]"):
                return
            if not line.endswith(b"\n"):
                break  # the connection ended within an event
            if not line.startswith(b"data: "):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                self._refused(event["error"])
                return
            for choice in event["choices"]:
                self._take(choice["text"] if "text" in choice else said_by(choice["delta"]), choice["finish_reason"])
        self.error = StreamError(None, f"broke off after {self.num_pieces} pieces")

    def _refused(self, error: dict[str, Any]) -> None:
        self.error = StreamError(str(error["code"]), str(error["message"]))

    def _take(self, text: str, finish: str | None) -> None:
        with self._changed:
            if text:
                self._pieces.append(text)
            if finish is not None:
                self.finishes.append(finish)
            self._changed.notify_all()

    @property
    def num_pieces(self) -> int:
        return len(self._pieces)

    @property
    def is_done(self) -> bool:
        return self._done

    def wait_for_pieces(self, count: int) -> None:
        """Returns when so many pieces of text have come."""
        with self._changed:
            came = self._changed.wait_for(lambda: len(self._pieces) >= count or self._done, ANSWER_TIMEOUT_S)
        assert came
        assert len(self._pieces) >= count, f"ended after {len(self._pieces)} pieces: {self.error}"

    def join(self) -> str:
        """Waits for the end; the whole text."""
        self._thread.join(ANSWER_TIMEOUT_S)
        assert not self._thread.is_alive(), f"hangs after {self.num_pieces} pieces"
        return "".join(self._pieces)


def said_by(message: dict[str, Any]) -> str:
    """The text of a message of a chat, or of a delta: its content, and its calls as names and arguments."""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    said = [call.get("name", "") + call.get("arguments", "") for call in calls]
    return (message.get("content") or "") + "".join(said)


@contextmanager
def streaming(streams: Sequence[BackgroundStream]) -> Iterator[None]:
    """Starts streams, and waits for all of them at the end, also if the test fails."""
    with ExitStack() as stack:
        for stream in streams:
            stream.start()
            stack.callback(stream.join)
        yield
