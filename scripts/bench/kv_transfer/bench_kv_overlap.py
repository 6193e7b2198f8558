#!/usr/bin/env python3
"""What KV transfer costs a user: how long a sequence waits for its pages, and what others notice of their arrival.

    python scripts/bench/kv_transfer/bench_kv_overlap.py [--model DIR] [--isl 512,1024] [--repeats 9]
        [--transport auto]
    [--figure SVG]

A prefill and a decode worker's engine with real transfer agents, in two processes; no router and no HTTP.

- exposed: from the moment the last layer's keys and values are written until all pages are verified and in place at
  the decode worker, also as a share of TTFT (request to first token of the prefill engine).
- ITL of 4 running streams, at the decode worker, while a prompt is computed elsewhere: alone, with the other worker
  computing, and with it computing and sending here. The second is what the machine costs, the third adds the pages.
- a timeline by layer of the transfer with the median exposed time; `--figure` draws that of the last ISL.

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

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engine"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import numpy as np
from bench_kv_overlap_svg import Bar, Overlap, draw
from yardstick_models import make_model

from slipstream.kv_transfer.api.page_transport import Landed, MessagePages, PageMover
from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId
from slipstream.kv_transfer.api.transfer_config import TransferConfig
from slipstream.kv_transfer.api.transport import MessageArrival
from slipstream.router.protocol.messages import EngineRequest, SamplingParams, pack_ids
from slipstream.workers.config.worker_config import EngineConfig, WorkerConfig
from slipstream.workers.engine.engine_builder import build_engine
from slipstream.workers.engine.execution.model_runner import PageSink
from slipstream.workers.engine.native_engine import NativeEngine
from slipstream.workers.engine.plan.step_plan import PageSend, SendProgress
from slipstream.workers.group.rank_parts import RankParts, rank_parts
from slipstream.workers.models.interface.tensor_parallel import TensorParallel
from slipstream.workers.transfers.group_transfers import RankOutcome

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
    layers: list[tuple[int, float]]  # when its keys and values were written: once for each chunk of the prompt

    @property
    def last(self) -> float:
        return self.layers[-1][1]


class WatchedSink:
    """Notes when each layer was done."""

    def __init__(self, sink: PageSink) -> None:
        self._sink = sink
        self.layers: list[tuple[int, float]] = []

    def begin_sends(self, sends: tuple[PageSend, ...]) -> None:
        self._sink.begin_sends(sends)

    def layer_done(self, layer: int, progress: tuple[SendProgress, ...]) -> None:
        self.layers.append((layer, time.perf_counter()))
        self._sink.layer_done(layer, progress)


class WatchedLandings:
    """Notes when each message was in place, by layer."""

    def __init__(self, mover: PageMover) -> None:
        self._receive = mover.receive
        self.layers: list[tuple[int, float]] = []
        mover.receive = self.receive  # type: ignore[method-assign]

    def receive(self, arrival: MessageArrival, pages: MessagePages, landed: Landed) -> None:
        layers = range(pages.layer, pages.layer + pages.num_layers)
        self._receive(arrival, pages, partial(self._landed, layers, landed))

    def _landed(self, layers: range, landed: Landed, error: str | None, is_whole: bool) -> None:
        now = time.perf_counter()
        self.layers += [(layer, now) for layer in layers]
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
    engine: NativeEngine, sink: WatchedSink, name: str, prompt: Sequence[int], ticket: HandoffTicket | None
) -> Computed:
    sink.layers.clear()
    began = time.perf_counter()
    if ticket is None:
        engine.add(request(name, prompt, 1))
    else:
        engine.add_prefill(request(name, prompt, 8), ticket)
    chunks = []
    while not chunks:
        chunks = engine.step()
    return Computed(began, time.perf_counter(), chunks[0].token_ids[0], list(sink.layers))


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
        self._tickets = parts.ticket_issuer(DECODE, (parts.agent.address,), TransferConfig().slab_pages)
        self._landings = WatchedLandings(parts.agent._agent._movers[0])
        self._random = np.random.default_rng(0)
        self._vocab_size = parts.limits.vocab_size
        self._num_requests = 0

    def prompt(self, num_tokens: int) -> list[int]:
        prompt: list[int] = self._random.integers(3, self._vocab_size, num_tokens).tolist()
        return prompt

    def name(self) -> str:
        self._num_requests += 1
        return f"r{self._num_requests}"

    def transfer(self, isl: int, figures: Figures) -> tuple[Computed, list[tuple[int, float]]]:
        """One prompt with nothing else going on."""
        self._landings.layers.clear()
        name, prompt = self.name(), self.prompt(isl)
        self._ask(name, prompt)
        computed: Computed = self._connection.recv()
        landed, outcome = self._ended.get()
        assert outcome.failure is None, outcome
        self._engine.release((name, 0))
        figures.ttft.append(1e3 * (computed.first_token - computed.began))
        figures.exposed.append(1e3 * (landed - computed.last))
        figures.after_token.append(1e3 * (landed - computed.first_token))
        return computed, list(self._landings.layers)

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


def overlap(isl: int, computed: Computed, landed: list[tuple[int, float]]) -> Overlap:
    def ms(at: float) -> float:
        return 1e3 * (at - computed.began)

    bars, before = [], computed.began
    done: dict[int, list[float]] = {}  # of each layer, by chunk
    for layer, at in computed.layers:
        bars.append(Bar(layer, ms(before), ms(at)))
        done.setdefault(layer, []).append(at)
        before = at
    sent = []
    for layer, there in landed:
        # A slab leaves with the last chunk that belongs to it, so with the last one that was done before it was there.
        ready = max(at for at in done[layer] if at < there)
        sent.append(Bar(layer, ms(ready), ms(there)))
    return Overlap(f"A prompt of {isl} tokens, prefilled and handed over", bars, sent, ms(computed.first_token))


def timeline(picture: Overlap) -> str:
    """`=` a layer is computed, `>` its pages are on their way, `*` they are verified and in place."""
    scale = COLUMNS / picture.end
    lines = []
    for layer in sorted({bar.layer for bar in picture.computed}):
        row = [" "] * (COLUMNS + 2)
        for bars, mark in ((picture.computed, "="), (picture.sent, ">")):
            for bar in bars:
                if bar.layer == layer:
                    first, last = int(bar.begin * scale), int(bar.end * scale)
                    row[first : max(last, first + 1)] = mark * max(last - first, 1)
                    if mark == ">":
                        row[max(last, first + 1)] = "*"
        late = max(bar.end - bar.begin for bar in picture.sent if bar.layer == layer)
        lines.append(f"layer {layer:2} |{''.join(row)}| {late:5.2f} ms after it was computed")
    token = int(picture.first_token * scale)
    lines.append(f"token    |{' ' * token}^{'':{COLUMNS + 1 - token}}| {picture.first_token:.1f} ms")
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
    parser.add_argument("--figure", type=Path, help="where to write the timeline of the last ISL, as SVG")
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
                picture = overlap(isl, *pictures[middle])
                print(timeline(picture), flush=True)
                if options.figure:
                    options.figure.write_text(draw(picture))
            connection.send(None)
            process.join()


if __name__ == "__main__":
    main()
