#!/usr/bin/env python3
"""What KV transfer costs a user: how long a sequence waits for its pages, and what others notice of their arrival.

    python scripts/bench_kv_overlap.py --model DIR [--isl 512,1024] [--repeats 9] [--transport auto]

A prefill and a decode worker's engine with real transfer agents, in two processes; no router and no HTTP.

- exposed: from the moment the last layer's keys and values are written until all pages are verified and in place at
  the decode worker, also as a share of TTFT (request to first token of the prefill engine).
- ITL of 4 running streams, at the decode worker, while a prompt is computed elsewhere: alone, with the other worker
  computing, and with it computing and sending here. The second is what the machine costs, the third adds the pages.
- a timeline of one transfer by layer.

Medians over the repeats. Without `--model`, the random-weight model M (12 layers, bf16) is made in a temporary folder.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Literal

sys.path.insert(0, str(Path(__file__).resolve().parent / "engine_bench"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from yardstick_models import make_model

from slipstream.kv_transfer.config import TransferConfig
from slipstream.kv_transfer.page_transport import Landed, Pages, PageTransport
from slipstream.kv_transfer.ticket import HandoffTicket, PeerId
from slipstream.kv_transfer.transport import Arrival
from slipstream.router.messages import EngineRequest, SamplingParams, pack_ids
from slipstream.workers.config import EngineConfig, WorkerConfig
from slipstream.workers.engine.build import build_engine
from slipstream.workers.engine.engine import Engine
from slipstream.workers.engine.plan import PageSend, SendProgress
from slipstream.workers.engine.runner import PageSink
from slipstream.workers.group_transfers import RankOutcome
from slipstream.workers.models.tensor_parallel import TensorParallel
from slipstream.workers.rank_parts import RankParts, rank_parts

NUM_STREAMS, STREAM_ISL = 4, 128
COLUMNS = 72  # of the timeline
PREFILL, DECODE = PeerId("prefill", 1), PeerId("decode", 1)
Way = Literal["alone", "computing", "sending"]


@dataclass
class Computed:
    """Times on the clock that all processes of a machine share (`perf_counter`)."""

    began: float
    first_token: float
    token_id: int
    layers: dict[int, float] = field(default_factory=dict)  # when the last of its keys and values were written


class WatchedSink:
    """Notes when each layer was done."""

    def __init__(self, sink: PageSink) -> None:
        self._sink = sink
        self.layers: dict[int, float] = {}

    def begin_sends(self, sends: tuple[PageSend, ...]) -> None:
        self._sink.begin_sends(sends)

    def layer_done(self, layer: int, progress: tuple[SendProgress, ...]) -> None:
        self.layers[layer] = time.perf_counter()
        self._sink.layer_done(layer, progress)


class WatchedLandings:
    """Notes when the last message of each layer was in place. Looks over the shoulder of an agent's transport."""

    def __init__(self, transport: PageTransport) -> None:
        self._receive = transport.receive
        self.layers: dict[int, float] = {}
        transport.receive = self.receive  # type: ignore[method-assign]

    def receive(self, arrival: Arrival, pages: Pages, landed: Landed) -> None:
        self._receive(arrival, pages, partial(self._landed, pages.layer, landed))

    def _landed(self, layer: int, landed: Landed, error: str | None, is_whole: bool) -> None:
        self.layers[layer] = time.perf_counter()
        landed(error, is_whole)


def settings(options: argparse.Namespace, role: Literal["prefill", "decode"]) -> WorkerConfig:
    return WorkerConfig(
        name=role,
        role=role,
        model="M",
        model_dir=options.model,
        router_host="127.0.0.1",
        router_port=1,
        token="bench",
        ranks_on_host=2,
        engine=EngineConfig(kv_cache_mib=256, prefix_caching=False),
        transfer=TransferConfig(transport=options.transport),
    )


def request(name: str, prompt: Sequence[int], max_tokens: int) -> EngineRequest:
    params = SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
    return EngineRequest(name, 0, pack_ids(prompt), b"", params)


def prefill_worker(connection: Connection, options: argparse.Namespace) -> None:
    ended: SimpleQueue[RankOutcome] = SimpleQueue()
    with rank_parts(settings(options, "prefill"), TensorParallel(), ended.put) as parts:
        engine = build_engine(parts.limits, parts.runner)
        parts.agent.begin_epoch(PREFILL)
        sink = parts.runner.sink = WatchedSink(parts.agent)
        connection.send(None)
        while (job := connection.recv()) is not None:
            name, prompt, ticket = job
            connection.send(compute(engine, sink, name, prompt, ticket))
            if ticket is not None:
                assert (outcome := ended.get()).failure is None, outcome
                engine.release((name, 0))


def compute(
    engine: Engine, sink: WatchedSink, name: str, prompt: Sequence[int], ticket: HandoffTicket | None
) -> Computed:
    began = time.perf_counter()
    if ticket is None:
        engine.add(request(name, prompt, 1))
    else:
        engine.add_prefill(request(name, prompt, 8), ticket)
    chunks = []
    while not chunks:
        chunks = engine.step()
    return Computed(began, time.perf_counter(), chunks[0].token_ids[0], dict(sink.layers))


@dataclass
class Figures:
    """An entry a repeat, in ms."""

    ttft: list[float] = field(default_factory=list)
    exposed: list[float] = field(default_factory=list)
    after_token: list[float] = field(default_factory=list)  # pages in place, after the first token
    itl: dict[Way, list[float]] = field(default_factory=lambda: {"alone": [], "computing": [], "sending": []})


class DecodeWorker:
    def __init__(self, connection: Connection, parts: RankParts, ended: SimpleQueue[tuple[float, RankOutcome]]) -> None:
        self._connection = connection
        self._ended = ended
        self._engine = build_engine(parts.limits, parts.runner)
        self._agent = parts.agent
        self._agent.begin_epoch(DECODE)
        self._tickets = parts.ticket_office(DECODE, (parts.agent.address,), TransferConfig().slab_pages)
        self._landings = WatchedLandings(parts.agent._agent._transport)
        self._random = np.random.default_rng(0)
        self._vocab_size = parts.limits.vocab_size
        self._num_requests = 0

    def prompt(self, num_tokens: int) -> list[int]:
        prompt: list[int] = self._random.integers(3, self._vocab_size, num_tokens).tolist()
        return prompt

    def name(self) -> str:
        self._num_requests += 1
        return f"r{self._num_requests}"

    def transfer(self, isl: int, figures: Figures) -> tuple[Computed, dict[int, float]]:
        """One prompt with nothing else going on."""
        name, prompt = self.name(), self.prompt(isl)
        self._ask(name, prompt)
        computed: Computed = self._connection.recv()
        landed, outcome = self._ended.get()
        assert outcome.failure is None, outcome
        self._engine.release((name, 0))
        figures.ttft.append(1e3 * (computed.first_token - computed.began))
        figures.exposed.append(1e3 * (landed - max(computed.layers.values())))
        figures.after_token.append(1e3 * (landed - computed.first_token))
        return computed, dict(self._landings.layers)

    def _ask(self, name: str, prompt: list[int]) -> None:
        reservation = self._engine.reserve(request(name, prompt, 8))
        assert reservation is not None
        ticket = self._tickets.issue(reservation.first_page, len(reservation.page_ids))
        self._agent.expect(ticket, reservation.page_ids, PREFILL, 1)
        self._connection.send((name, prompt, ticket))

    def streams(self, way: Way, isl: int, figures: Figures) -> None:
        """Steps of running streams while the other worker computes one prompt (or, alone, for as many steps)."""
        names = [self.name() for _ in range(NUM_STREAMS)]
        for name in names:
            self._engine.add(request(name, self.prompt(STREAM_ISL), 1000))
        for _ in range(8):
            self._engine.step()
        prompt, asked = self.prompt(isl), self.name()
        match way:
            case "computing":
                self._connection.send((asked, prompt, None))
            case "sending":
                self._ask(asked, prompt)
        steps: list[float] = []
        while not self._is_over(way, len(steps)):
            began = time.perf_counter()
            self._engine.step()
            steps.append(1e3 * (time.perf_counter() - began))
        figures.itl[way] += steps
        if way != "alone":
            self._connection.recv()
        if way == "sending":
            self._ended.get()
            self._engine.release((asked, 0))
        for name in names:
            self._engine.abort((name, 0))

    def _is_over(self, way: Way, num_steps: int) -> bool:
        match way:
            case "alone":
                return num_steps == 12
            case "computing":
                return self._connection.poll()
            case "sending":
                return not self._ended.empty()


def timeline(computed: Computed, landed: dict[int, float]) -> str:
    """`=` a layer is computed, `>` its pages are on their way, `*` they are verified and in place."""
    end = max(computed.first_token, *landed.values())
    scale = COLUMNS / (end - computed.began)
    lines, before = [], computed.began
    for layer in sorted(computed.layers):
        done, there = computed.layers[layer], landed[layer]
        first, last, mark = (int((at - computed.began) * scale) for at in (before, done, there))
        mark = max(mark, last + 1)
        bar = " " * first + "=" * max(1, last - first) + ">" * (mark - last - 1) + "*"
        lines.append(f"layer {layer:2} |{bar:{COLUMNS + 2}}| {1e3 * (there - done):5.2f} ms after it was computed")
        before = done
    token = int((computed.first_token - computed.began) * scale)
    lines.append(
        f"token    |{' ' * token}^{'':{COLUMNS + 1 - token}}| {1e3 * (computed.first_token - computed.began):.1f} ms"
    )
    return "\n".join(lines)


def report(isl: int, figures: Figures) -> None:
    ttft, exposed = statistics.median(figures.ttft), statistics.median(figures.exposed)
    print(
        f"ISL {isl:5}: TTFT {ttft:.1f} ms, exposed transfer {exposed:.2f} ms = {100 * exposed / ttft:.1f} %, pages in "
        f"place {statistics.median(figures.after_token):+.2f} ms from the first token"
    )
    for way, steps in figures.itl.items():
        print(
            f"           ITL of {NUM_STREAMS} streams, {way:9}: median {statistics.median(steps):.2f} ms, "
            f"p90 {statistics.quantiles(steps, n=10)[-1]:.2f} ms ({len(steps)} steps)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model")
    parser.add_argument("--isl", default="512,1024")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--transport", default="auto")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        options.model = options.model or str(make_model("M-bf16", Path(folder)))
        context = multiprocessing.get_context("spawn")
        connection, theirs = context.Pipe()
        process = context.Process(target=prefill_worker, args=(theirs, options))
        process.start()
        ended: SimpleQueue[tuple[float, RankOutcome]] = SimpleQueue()
        config = settings(options, "decode")
        with rank_parts(config, TensorParallel(), lambda outcome: ended.put((time.perf_counter(), outcome))) as parts:
            worker = DecodeWorker(connection, parts, ended)
            connection.recv()
            for isl in (int(isl) for isl in options.isl.split(",")):
                worker.transfer(isl, Figures())  # connects and warms up
                figures = Figures()
                pictures = [worker.transfer(isl, figures) for _ in range(options.repeats)]
                ways: tuple[Way, ...] = ("alone", "computing", "sending")
                for _ in range(options.repeats):
                    for way in ways:
                        worker.streams(way, isl, figures)
                report(isl, figures)
                middle = figures.exposed.index(statistics.median_low(figures.exposed))
                print(timeline(*pictures[middle]), flush=True)
            connection.send(None)
            process.join()


if __name__ == "__main__":
    main()
