"""Some requests of each kind, so that a cluster's metrics have values."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field

REQUEST_TIMEOUT_S = 60.0


@dataclass(slots=True)
class TryLoad:
    """Threads that ask a router in turn for answers of the language model and of tensor models, some with mistakes."""

    url: str
    model: str
    tensor_models: tuple[str, ...]
    keys: tuple[str, ...] = ()
    num_threads: int = 12
    counts: dict[str, int] = field(default_factory=dict)  # by kind and status
    _ended: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        for number in range(self.num_threads):
            key = self.keys[number % len(self.keys)] if self.keys else ""
            thread = threading.Thread(target=self._ask_on, args=(number, key), daemon=True)
            self._threads.append(thread)
            thread.start()

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _ask_on(self, number: int, key: str) -> None:
        kinds: list[Callable[[int, str], None]] = [self._chat, self._wrong]
        kinds += [self._infer] if self.tensor_models else []
        turn = number
        while not self._ended.is_set():
            kinds[turn % len(kinds)](turn, key)
            turn += 1

    def _chat(self, turn: int, key: str) -> None:
        text = f"{turn % 5} " + "Write a function that reads a file. " * (1 + turn % 12)
        body = {"model": self.model, "max_tokens": 64, "messages": [{"role": "user", "content": text}]}
        self._post("chat", "/v1/chat/completions", body, key)

    def _wrong(self, turn: int, key: str) -> None:
        del turn
        self._post("wrong", "/v1/completions", {"model": self.model, "prompt": "x", "max_tokens": -1}, key)
        self._post("no key", "/v1/completions", {"model": self.model, "prompt": "x", "max_tokens": 1}, "wrong")

    def _infer(self, turn: int, key: str) -> None:
        name = self.tensor_models[turn % len(self.tensor_models)]
        self._post("infer", f"/v2/models/{name}/infer", {"inputs": self._inputs(name, key)}, key)

    def _inputs(self, name: str, key: str) -> list[dict[str, object]]:
        """One row of ones, or of texts, for each input of the model."""
        question = urllib.request.Request(f"{self.url}/v2/models/{name}", headers=bearer(key))
        with urllib.request.urlopen(question, timeout=REQUEST_TIMEOUT_S) as answer:
            inputs = json.load(answer)["inputs"]
        found = []
        for one in inputs:
            shape = [max(size, 1) for size in one["shape"]]
            count = 1
            for size in shape:
                count *= size
            value: object = "text" if one["datatype"] == "BYTES" else one["datatype"] == "BOOL" or 1
            found.append({**one, "shape": shape, "data": [value] * count})
        return found

    def _post(self, kind: str, path: str, body: object, key: str) -> None:
        headers = {"Content-Type": "application/json", **bearer(key)}
        question = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(question, timeout=REQUEST_TIMEOUT_S) as answer:
                answer.read()
                status = answer.status
        except urllib.error.HTTPError as error:
            status = error.code
        except OSError:
            status = 0
        with self._lock:
            name = f"{kind} {status}"
            self.counts[name] = self.counts.get(name, 0) + 1


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}
