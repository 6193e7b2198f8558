"""kill -9 of a router process in the midst of its clients: with a keeper the next one goes on with all of them."""

from __future__ import annotations

import json
import operator
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from slipstream.router.http.failover.held_connection import MAX_LIVES
from slipstream.router.http.failover.holder.socket_holder import SocketHolder
from slipstream.router.protocol.messages import pack_ids
from slipstream.workers.mock.output_policy import expected_token
from tests.support.router.response_events import put_together, response_events

MODEL_DIR = Path(__file__).parents[3] / "models" / "slipstream-demo"
TIMEOUT_S = 60.0
POLL_S = 0.02  # so that those who are waited for have the processor
TOKENIZER = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))


def text_of(prompt: list[int], num_tokens: int) -> str:
    text: str = TOKENIZER.decode([expected_token(pack_ids(prompt), i, 300) for i in range(num_tokens)])
    return text


class Serving:
    """A router that can be killed, at the same ports again and again, and two mock workers."""

    def __init__(self, folder: Path, num_fronts: int, tls: dict[str, str] | None = None) -> None:
        self._path = folder / "router.json"
        self.num_fronts = num_fronts
        self._tls = tls or {}
        self.unix_socket = folder / "http.sock"
        self.store = folder / "store"
        self.keeper = SocketHolder()
        self._ports = [0, 0]
        self.start_router()
        self.workers = subprocess.Popen(
            (
                *(sys.executable, "-m", "slipstream.workers.mock.main"),
                *("--router", self.worker_address, "--model", "m"),
                *("--set", "vocab_size=300", "--set", "step_s=0.002"),
            ),
            env={**os.environ, "SLIPSTREAM_WORKER_TOKEN": "secret"},
        )

    def start_router(self, admin_port: int | None = None, is_ending: bool = False, drain_grace_s: float = 0.0) -> bool:
        """Whether it listens."""
        http_port, worker_port = self._ports
        program: dict[str, Any] = {
            "model": "m",
            "model_dir": str(MODEL_DIR),
            "token": "secret",
            "keeper": str(self.keeper.path),
            "is_ending": is_ending,
            "drain_grace_s": drain_grace_s,
            "router": {
                "http": {"port": http_port, "tls": self._tls, "unix_socket": str(self.unix_socket)},
                "worker_port": worker_port,
                "frontends": self.num_fronts,
                "admin": {"port": admin_port},
                "store": {"directory": str(self.store)},
                "batches": {"max_running_lines": 4},
            },
        }
        self._path.write_text(json.dumps(program))
        command = [sys.executable, "-m", "slipstream.router.main", "--config", str(self._path)]
        self.router = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.router.stdout is not None
        line = self.router.stdout.readline()
        if not line:
            self.router.communicate(timeout=TIMEOUT_S)
            return False
        listening = json.loads(line)
        self.url, self.worker_address = listening["http"], listening["workers"]
        self._ports = [int(self.url.rpartition(":")[2]), int(self.worker_address.rpartition(":")[2])]
        return True

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self._ports[0]

    def kill(self) -> None:
        self.router.kill()
        self.router.communicate()

    def begin_anew(self) -> None:
        """After a router that was asked to end."""
        self.router.communicate(timeout=TIMEOUT_S)
        self.start_router()
        self.wait_until_ready()

    def close(self) -> None:
        for process in (self.workers, self.router):
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=TIMEOUT_S)
        self.keeper.close()

    def wait_until_ready(self) -> None:
        with httpx.Client(base_url=self.url, timeout=TIMEOUT_S) as client:
            while client.get("/health/ready").status_code != 200:
                assert self.workers.poll() is None
                time.sleep(POLL_S)


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two fronts"])
def serving(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Serving]:
    """Of all tests; each leaves it with a router."""
    serving = Serving(tmp_path_factory.mktemp("killed"), request.param)
    try:
        serving.wait_until_ready()
        yield serving
    finally:
        serving.close()


# What has to do with connections or with the whole router alone, and not with which process of it serves whom.
one_process_is_enough = pytest.mark.parametrize("serving", [1], indirect=True, ids=["one process"])


@dataclass
class Received:
    """What a stream came to."""

    texts: dict[int, str]
    heads: set[tuple[str, int]]  # id and time of the answer
    num_done: int
    usage: int


def read_stream(client: httpx.Client, first: threading.Event, **fields: Any) -> Received:
    received = Received({}, set(), 0, 0)
    body = {"model": "m", "stream": True, "stream_options": {"include_usage": True}, **fields}
    with client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line == "data: [DONE]":
                received.num_done += 1
            elif line:
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event
                received.heads.add((event["id"], event["created"]))
                for choice in event["choices"]:
                    received.texts[choice["index"]] = received.texts.get(choice["index"], "") + choice["text"]
                received.usage = (event.get("usage") or {}).get("completion_tokens", 0)
                first.set()
    return received


@contextmanager
def held(process: subprocess.Popen[Any]) -> Iterator[None]:
    """It does nothing meanwhile."""
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def wait_for_requests(client: httpx.Client, num_requests: int) -> None:
    """So many choices wait or run. A process that is killed may take a client along that it has just accepted."""
    status: dict[str, Any] = {"num_waiting": 0, "num_running": 0}
    while status["num_waiting"] + status["num_running"] < num_requests:
        status = client.get("/cluster/status").json()
        time.sleep(POLL_S)


def test_streams_and_whole_answers_go_on_after_the_last_byte(serving: Serving) -> None:
    prompts = [[20 + (7 * number + i) % 250 for i in range(30)] for number in range(12)]
    with httpx.Client(base_url=serving.url, timeout=TIMEOUT_S) as client, ThreadPoolExecutor(24) as threads:
        begun = [threading.Event() for _ in prompts]
        with held(serving.workers):  # nothing ends before all have come
            streams = [
                threads.submit(read_stream, client, event, prompt=prompt, max_tokens=900, n=1 + number % 2)
                for number, (prompt, event) in enumerate(zip(prompts, begun, strict=True))
            ]
            whole = [
                threads.submit(client.post, "/v1/completions", json={"model": "m", "prompt": prompt, "max_tokens": 900})
                for prompt in prompts
            ]
            wait_for_requests(client, 6 * 3 + len(whole))
        for event in begun:
            assert event.wait(TIMEOUT_S)
        for _ in range(2):
            serving.kill()
            serving.start_router()
            serving.wait_until_ready()
            time.sleep(0.3)  # so that the second kill finds other tokens sent than the first
        for number, (prompt, stream) in enumerate(zip(prompts, streams, strict=True)):
            received = stream.result(TIMEOUT_S)
            assert received.texts == {choice: text_of(prompt, 900) for choice in range(1 + number % 2)}
            assert (len(received.heads), received.num_done, received.usage) == (1, 1, 900 * (1 + number % 2))
        for prompt, request in zip(prompts, whole, strict=True):
            answer = request.result(TIMEOUT_S)
            assert answer.status_code == 200
            assert answer.json()["choices"][0]["text"] == text_of(prompt, 900)


def read_response(client: httpx.Client, first: threading.Event, text: str) -> list[dict[str, Any]]:
    """The events of a streamed response."""
    body = {"model": "m", "input": text, "stream": True, "max_output_tokens": 400, "ignore_eos": True}
    data = b""
    with client.stream("POST", "/v1/responses", json=body) as answer:
        assert answer.status_code == 200
        for part in answer.iter_bytes():
            data += part
            if b"output_text.delta" in data:
                first.set()
    return response_events(data)


def test_responses_go_on_as_one_sequence_of_events_and_each_is_stored(serving: Serving) -> None:
    texts = [f"Number {number}." for number in range(6)]
    with httpx.Client(base_url=serving.url, timeout=TIMEOUT_S) as client, ThreadPoolExecutor(9) as threads:
        begun = [threading.Event() for _ in texts]
        with held(serving.workers):  # nothing ends before all have come
            streams = [
                threads.submit(read_response, client, event, text) for text, event in zip(texts, begun, strict=True)
            ]
            body = {"model": "m", "max_output_tokens": 400, "ignore_eos": True}
            whole = [threads.submit(client.post, "/v1/responses", json={**body, "input": text}) for text in texts[:3]]
            wait_for_requests(client, len(streams) + len(whole))
        for event in begun:
            assert event.wait(TIMEOUT_S)
        for _ in range(2):
            serving.kill()
            serving.start_router()
            serving.wait_until_ready()
        responses = [request.result(TIMEOUT_S).json() for request in whole]
        for stream in streams:
            events = stream.result(TIMEOUT_S)
            put_together(events)
            responses.append(events[-1]["response"])
        assert [response["status"] for response in responses] == ["incomplete"] * len(responses)
        for response in responses:
            assert client.get(f"/v1/responses/{response['id']}").json() == response


def output_tokens(client: httpx.Client) -> list[int]:
    """Of the clients' requests, in the order of their ids, which stay the same."""
    latest = client.get("/v1/requests").json()["data"]
    tokens = {one["request_id"]: one["num_output_tokens"] for one in latest if one["request_id"].startswith("cmpl-")}
    return [tokens[request_id] for request_id in sorted(tokens)]


@one_process_is_enough
def test_an_answer_outlives_as_many_routers_as_bring_it_forward(serving: Serving) -> None:
    prompts, begun, max_tokens = [[20] * 30, [21] * 30], threading.Event(), 4000
    serving.kill()
    serving.start_router()
    serving.wait_until_ready()
    patient = 3 * TIMEOUT_S  # the whole answer says nothing until all these routers have had their turn
    with httpx.Client(base_url=serving.url, timeout=patient) as client, ThreadPoolExecutor(2) as threads:
        body = {"model": "m", "prompt": prompts[0], "max_tokens": max_tokens}
        whole = threads.submit(client.post, "/v1/completions", json=body)
        stream = threads.submit(read_stream, client, begun, prompt=prompts[1], max_tokens=max_tokens)
        so_far = [0, 0]
        for _ in range(MAX_LIVES + 2):
            while len(tokens := output_tokens(client)) < 2 or any(map(operator.le, tokens, so_far)):
                time.sleep(POLL_S)
            so_far = tokens
            serving.kill()
            serving.start_router()
        assert whole.result(TIMEOUT_S).json()["choices"][0]["text"] == text_of(prompts[0], max_tokens)
        got = stream.result(TIMEOUT_S)
        assert (got.texts, got.num_done, got.usage) == ({0: text_of(prompts[1], max_tokens)}, 1, max_tokens)


def test_a_killed_front_is_followed_by_one_that_goes_on(serving: Serving) -> None:
    fronts = Path(f"/proc/{serving.router.pid}/task/{serving.router.pid}/children").read_text().split()
    prompts = [[20 + (5 * number + i) % 250 for i in range(30)] for number in range(8)]
    with httpx.Client(base_url=serving.url, timeout=TIMEOUT_S) as client, ThreadPoolExecutor(8) as threads:
        begun = [threading.Event() for _ in prompts]
        streams = [
            threads.submit(read_stream, client, event, prompt=prompt, max_tokens=500)
            for prompt, event in zip(prompts, begun, strict=True)
        ]
        for event in begun:
            assert event.wait(TIMEOUT_S)
        for pid in fronts:
            os.kill(int(pid), signal.SIGKILL)
        for prompt, stream in zip(prompts, streams, strict=True):
            assert stream.result(TIMEOUT_S).texts == {0: text_of(prompt, 500)}
    assert serving.router.poll() is None


def test_a_router_that_fails_to_start_leaves_clients_and_ports_to_the_next(serving: Serving) -> None:
    prompt, begun = [80] * 20, threading.Event()
    with (
        httpx.Client(base_url=serving.url, timeout=TIMEOUT_S) as client,
        ThreadPoolExecutor(1) as threads,
        socket.create_server(("127.0.0.1", 0)) as taken,
    ):
        stream = threads.submit(read_stream, client, begun, prompt=prompt, max_tokens=500)
        assert begun.wait(TIMEOUT_S)
        serving.kill()
        assert not serving.start_router(admin_port=taken.getsockname()[1])
        host, _, port = serving.worker_address.rpartition(":")
        with pytest.raises(OSError, match="in use"):
            socket.create_server((host, int(port)))
        assert serving.start_router()
        assert stream.result(TIMEOUT_S).texts == {0: text_of(prompt, 500)}


def test_connections_without_a_request_and_clients_to_come_wait_for_the_next_router(serving: Serving) -> None:
    with httpx.Client(base_url=serving.url, timeout=TIMEOUT_S) as client:
        body = {"model": "m", "prompt": [30] * 20, "max_tokens": 5}
        assert client.post("/v1/completions", json=body).status_code == 200
        serving.kill()
        with ThreadPoolExecutor(2) as threads:
            known = threads.submit(client.post, "/v1/completions", json=body)  # on the connection that is there
            new = threads.submit(httpx.post, f"{serving.url}/v1/completions", json=body, timeout=TIMEOUT_S)
            with socket.create_connection(serving.address):  # and none is refused
                serving.start_router()
            for request in (known, new):
                answer = request.result(TIMEOUT_S)
                assert answer.status_code == 200
                assert answer.json()["choices"][0]["text"] == text_of([30] * 20, 5)


def request_of(prompt: list[int], max_tokens: int, **fields: Any) -> bytes:
    body = json.dumps({"model": "m", "prompt": prompt, "max_tokens": max_tokens, **fields}).encode()
    return b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def read_whole(sock: socket.socket) -> dict[str, Any]:
    data = b""
    while b"\r\n\r\n" not in data:
        data += sock.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    (length,) = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    while len(body) < length:
        body += sock.recv(65536)
    answer: dict[str, Any] = json.loads(body)
    return answer


def test_half_a_request_is_completed_at_the_next_router(serving: Serving) -> None:
    request = request_of([40] * 1000, 5)
    for share in (0.1, 0.5, 0.95) if serving.num_fronts == 1 else (0.5,):
        cut = int(share * len(request))
        with socket.create_connection(serving.address, timeout=TIMEOUT_S) as sock:
            sock.sendall(request[:cut])
            read_in_between(serving)
            serving.kill()
            serving.start_router()
            sock.sendall(request[cut:])
            assert read_whole(sock)["choices"][0]["text"] == text_of([40] * 1000, 5)


def read_in_between(serving: Serving) -> None:
    """What was sent to the router before has been read by it afterwards: it reads one connection after the other."""
    for _ in range(2):
        assert httpx.get(f"{serving.url}/health/live", timeout=TIMEOUT_S).status_code == 200


@one_process_is_enough
def test_a_client_that_reads_nothing_for_a_while_misses_nothing(serving: Serving) -> None:
    prompt = [50] * 20
    with socket.socket() as sock, httpx.Client(base_url=serving.url, timeout=TIMEOUT_S) as other:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(TIMEOUT_S)
        sock.connect(serving.address)
        request = {"stream": True, "n": 16, "logprobs": 5}  # more than the sockets of both sides hold
        sock.sendall(request_of(prompt, 1000, **request))
        read_stream(other, threading.Event(), prompt=prompt, max_tokens=900)  # takes as long as 900 of its tokens
        serving.kill()
        serving.start_router()
        data = bytearray()
        while not data.endswith(b"0\r\n\r\n"):
            part = sock.recv(65536)
            assert part, "the stream broke off"
            data += part
    texts = dict.fromkeys(range(16), "")
    for event in unchunked(bytes(data)).split(b"\n\n"):
        if event.startswith(b"data: {"):
            (choice,) = json.loads(event[6:])["choices"]
            texts[choice["index"]] += choice["text"]
    assert set(texts.values()) == {text_of(prompt, 1000)}


def unchunked(response: bytes) -> bytes:
    """The body of a response in chunks."""
    _, _, rest = response.partition(b"\r\n\r\n")
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        body += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    return body


@one_process_is_enough
def test_a_client_that_left_while_there_was_no_router_is_not_served(serving: Serving) -> None:
    with socket.create_connection(serving.address, timeout=TIMEOUT_S) as sock:
        sock.sendall(request_of([60] * 20, 2000, stream=True))
        assert sock.recv(1000)
        serving.kill()
    serving.start_router()
    serving.wait_until_ready()
    with httpx.Client(base_url=serving.url, timeout=TIMEOUT_S) as client:
        while client.get("/cluster/status").json()["num_running"]:  # to the end of the test's time, if it is served
            time.sleep(POLL_S)


@one_process_is_enough
def test_a_client_that_had_asked_for_more_already_is_cut_off_and_not_answered_wrongly(serving: Serving) -> None:
    with socket.create_connection(serving.address, timeout=TIMEOUT_S) as sock:
        sock.sendall(request_of([70] * 20, 1000, stream=True))
        assert sock.recv(1000)
        sock.sendall(request_of([71] * 20, 5))
        read_in_between(serving)
        serving.kill()
        serving.start_router()
        with suppress(ConnectionResetError):
            while sock.recv(65536):
                pass


def wait_until_refused(serving: Serving) -> None:
    with suppress(ConnectionRefusedError):
        while True:
            with suppress(ConnectionResetError):  # of who comes while the port is being closed
                socket.create_connection(serving.address, timeout=TIMEOUT_S).close()


def test_the_routers_after_one_that_was_killed_while_it_drained_let_its_requests_end_and_refuse_new_ones(
    serving: Serving,
) -> None:
    prompts = [[20 + (3 * number + i) % 250 for i in range(30)] for number in range(8)]
    with httpx.Client(base_url=serving.url, timeout=TIMEOUT_S) as client, ThreadPoolExecutor(9) as threads:
        begun = [threading.Event() for _ in prompts]
        with held(serving.workers):  # nothing ends before all have come
            streams = [
                threads.submit(read_stream, client, event, prompt=prompt, max_tokens=1000)
                for prompt, event in zip(prompts, begun, strict=True)
            ]
            whole = threads.submit(
                client.post, "/v1/completions", json={"model": "m", "prompt": [90] * 20, "max_tokens": 1000}
            )
            wait_for_requests(client, 9)
        for event in begun:
            assert event.wait(TIMEOUT_S)
        serving.router.send_signal(signal.SIGTERM)
        wait_until_refused(serving)
        serving.kill()
        serving.start_router(is_ending=True)
        serving.router.send_signal(signal.SIGTERM)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(serving.address, timeout=TIMEOUT_S)
        for prompt, stream in zip(prompts, streams, strict=True):
            received = stream.result(TIMEOUT_S)
            assert (received.texts, received.num_done) == ({0: text_of(prompt, 1000)}, 1)
        assert whole.result(TIMEOUT_S).json()["choices"][0]["text"] == text_of([90] * 20, 1000)
    serving.begin_anew()


def test_a_front_that_is_killed_while_it_drains_is_followed_by_one_that_lets_its_requests_end(serving: Serving) -> None:
    fronts = Path(f"/proc/{serving.router.pid}/task/{serving.router.pid}/children").read_text().split()
    prompt, begun = [85] * 20, threading.Event()
    with httpx.Client(base_url=serving.url, timeout=TIMEOUT_S) as client, ThreadPoolExecutor(1) as threads:
        stream = threads.submit(read_stream, client, begun, prompt=prompt, max_tokens=1000)
        assert begun.wait(TIMEOUT_S)
        serving.router.send_signal(signal.SIGTERM)
        wait_until_refused(serving)
        for pid in fronts:
            with suppress(ProcessLookupError):  # nothing ran there
                os.kill(int(pid), signal.SIGKILL)
        assert stream.result(TIMEOUT_S).texts == {0: text_of(prompt, 1000)}
    serving.begin_anew()


def test_a_router_that_ends_in_order_leaves_nobody_waiting(serving: Serving) -> None:
    idle = socket.create_connection(serving.address, timeout=TIMEOUT_S)
    with idle:
        idle.sendall(b"GET /health/live HTTP/1.1\r\nhost: x\r\n\r\n")
        assert idle.recv(1000).startswith(b"HTTP/1.1 200")
        serving.router.send_signal(signal.SIGTERM)
        assert idle.recv(1000) == b""
        serving.router.communicate(timeout=TIMEOUT_S)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(serving.address, timeout=TIMEOUT_S)
    serving.start_router()


def test_a_router_that_leaves_is_unready_and_serves_until_a_second_signal(serving: Serving) -> None:
    serving.kill()
    serving.start_router(drain_grace_s=600)
    serving.wait_until_ready()
    fronts = children_of(serving.router.pid)
    body = {"model": "m", "prompt": [70] * 20, "max_tokens": 5}
    with httpx.Client(base_url=serving.url, timeout=TIMEOUT_S) as kept:
        assert kept.post("/v1/completions", json=body).headers.get("connection") is None
        serving.router.send_signal(signal.SIGTERM)
        with httpx.Client(base_url=serving.url, timeout=TIMEOUT_S) as client:
            while client.get("/health/ready").status_code != 503:
                time.sleep(POLL_S)
        for post in (kept.post, partial(httpx.post, timeout=TIMEOUT_S)):
            answer = post(f"{serving.url}/v1/completions", json=body)
            assert (answer.status_code, answer.headers.get("connection")) == (200, "close")
            assert answer.json()["choices"][0]["text"] == text_of([70] * 20, 5)
        for pid in fronts:  # the front that follows leaves as well
            os.kill(pid, signal.SIGKILL)
        while set(fronts) & set(children_of(serving.router.pid)) or len(children_of(serving.router.pid)) < len(fronts):
            time.sleep(POLL_S)
        with httpx.Client(base_url=serving.url, timeout=TIMEOUT_S) as client:
            answer = client.post("/v1/completions", json=body)
            assert (answer.status_code, answer.headers.get("connection")) == (200, "close")
    serving.router.send_signal(signal.SIGTERM)
    serving.router.communicate(timeout=TIMEOUT_S)
    assert serving.router.returncode == 1
    serving.begin_anew()


@one_process_is_enough
def test_after_ctrl_c_there_is_no_grace(serving: Serving) -> None:
    serving.kill()
    serving.start_router(drain_grace_s=600)
    serving.router.send_signal(signal.SIGINT)
    serving.router.communicate(timeout=TIMEOUT_S)
    assert serving.router.returncode == 0
    serving.begin_anew()


def test_clients_come_by_the_unix_socket_and_wait_there_for_the_next_router(serving: Serving) -> None:
    body = {"model": "m", "prompt": [60] * 20, "max_tokens": 5}

    def ask() -> str:
        transport = httpx.HTTPTransport(uds=str(serving.unix_socket))
        with httpx.Client(base_url="http://router", transport=transport, timeout=TIMEOUT_S) as client:
            answers = [client.post("/v1/completions", json=body) for _ in range(2)]  # on one connection
            assert {answer.status_code for answer in answers} == {200}
            return str(answers[1].json()["choices"][0]["text"])

    assert ask() == text_of([60] * 20, 5)
    serving.kill()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(ask)
        serving.start_router()
        assert waiting.result(TIMEOUT_S) == text_of([60] * 20, 5)
    serving.router.send_signal(signal.SIGTERM)
    serving.router.communicate(timeout=TIMEOUT_S)
    assert not serving.unix_socket.exists()
    serving.begin_anew()


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_a_batch_goes_on_at_the_next_router_and_no_line_is_lost_or_there_twice(serving: Serving) -> None:
    prompts = {f"n{number}": [number, 5, 6] for number in range(40)}
    num_tokens = 100
    lines = [
        json.dumps(
            {
                "custom_id": name,
                "method": "POST",
                "url": "/v1/completions",
                "body": {"model": "m", "prompt": prompt, "max_tokens": num_tokens, "ignore_eos": True},
            }
        )
        for name, prompt in prompts.items()
    ]
    with httpx.Client(base_url=f"{serving.url}/v1", timeout=TIMEOUT_S) as client:
        file = client.post("/files", data={"purpose": "batch"}, files={"file": ("in", "\n".join(lines))}).json()
        body = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "1h"}
        batch = client.post("/batches", json=body).json()
        written = serving.store / "blobs" / f"{batch['id']}.output"
        while not written.exists() or written.read_bytes().count(b"\n") < 5:
            time.sleep(POLL_S)
        serving.kill()
        before = written.read_bytes()
        assert serving.start_router()
        while (batch := client.get(f"/batches/{batch['id']}").json())["status"] != "completed":
            assert batch["status"] in ("in_progress", "finalizing"), batch
            time.sleep(POLL_S)
        results = client.get(f"/files/{batch['output_file_id']}/content").text.splitlines()
    assert batch["request_counts"] == {"total": 40, "completed": 40, "failed": 0}
    assert set(before.split(b"\n")[:-1]) < {line.encode() for line in results}, "a line was served again"
    found = [(one["custom_id"], one["response"]["body"]["choices"][0]["text"]) for one in map(json.loads, results)]
    assert found == [(name, text_of(prompt, num_tokens)) for name, prompt in prompts.items()]
