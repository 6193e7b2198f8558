"""The service with real TCP connections to workers that are played by the test."""

import asyncio
import time

import pytest
import uvloop

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.config.router_config import DispatchConfig, RouterConfig
from slipstream.router.dispatch.service import GenerationService
from slipstream.router.protocol.generation import (
    GenerateRequest,
    InvalidRequestError,
    NoWorkersError,
    PromptTooLongError,
    QueueFullError,
    Resumed,
    ShuttingDownError,
)
from slipstream.router.protocol.messages import (
    OLDEST_PROTOCOL_VERSION,
    PROTOCOL_VERSION,
    Cancel,
    Credits,
    Drain,
    Generate,
    PeerLost,
    Ping,
    Postponed,
    Rejected,
    SamplingParams,
    TokenLogprob,
)
from tests.support.router.worker_end import TOKEN, WorkerEnd, hello, until

CONFIG = RouterConfig(dispatch=DispatchConfig(worker_lease_s=60.0, max_queued_requests=2))


def request(request_id="r", num_prompt=5, **more):
    return GenerateRequest(request_id, [7] * num_prompt, SamplingParams(max_tokens=100), **more)


def serve(scenario, config=CONFIG, loop_factory=uvloop.new_event_loop):
    """Runs a scenario with a started service and closes it afterwards."""

    async def main():
        service = GenerationService(config, models={"m": config.dispatch}, token=TOKEN)
        await service.start()
        try:
            await scenario(service)
        finally:
            await service.close()
        assert service.snapshot_of("m").num_requests == 0
        assert service.snapshot_of("m").workers == ()

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(asyncio.wait_for(main(), 30))


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_tokens_stream_to_the_reader_and_the_end_says_how(loop_factory):
    async def scenario(service):
        worker = await WorkerEnd.join(service)
        stream = service.submit(request())
        message = await worker.next(Generate)
        assert message.request.sampling.max_tokens == 100
        worker.chunk("r", 0, 10, logprobs=(TokenLogprob(-0.5),))
        assert await anext(stream) == [(10, TokenLogprob(-0.5))]
        assert stream.finish is None
        worker.chunk("r", 1, 11, 12, finish="stop")
        assert [delta async for delta in stream] == [[(11, None), (12, None)]]
        assert stream.finish.reason == "stop"
        assert stream.finish.usage.num_output_tokens == 3
        times = stream.record.timeline
        assert times.queued <= times.placed <= times.first_token <= times.finished <= time.monotonic()
        assert stream.record.num_attempts == 1
        assert "finished: stop" in service.history.get("r").lines()[-1]

    serve(scenario, loop_factory=loop_factory)


def test_deltas_of_a_slow_reader_are_joined():
    async def scenario(service):
        worker = await WorkerEnd.join(service)
        stream = service.submit(request())
        await worker.next(Generate)
        for index in range(5):
            worker.chunk("r", index, index)
        worker.chunk("r", 5, finish="length")
        await until(lambda: stream.finish is not None)
        assert await anext(stream) == [(index, None) for index in range(5)]
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    serve(scenario)


def test_a_token_wakes_its_reader_without_waiting_for_a_timer_or_another_poll():
    async def scenario(service):
        worker = await WorkerEnd.join(service)
        stream = service.submit(request())
        await worker.next(Generate)
        reader = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        stream.deliver((1,), ())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert reader.done()
        stream.cancel()
        await worker.next(Cancel)

    serve(scenario, loop_factory=asyncio.new_event_loop)


def test_a_reader_that_has_all_it_wants_ends_the_request_as_stopped():
    async def scenario(service):
        worker = await WorkerEnd.join(service)
        with service.submit(request()) as stream:
            await worker.next(Generate)
            worker.chunk("r", 0, 10)
            await anext(stream)
            stream.cancel("stop")
        assert stream.finish.reason == "stop"
        assert await worker.next(Cancel) == Cancel("r", 0)
        assert service.snapshot_of("m").totals.finishes == {"stop": 1}

    serve(scenario)


def test_leaving_the_stream_cancels_once_and_frees_the_id():
    async def scenario(service):
        worker = await WorkerEnd.join(service)
        with service.submit(request()) as stream:
            await worker.next(Generate)
            worker.chunk("r", 0, 10)
            await anext(stream)
        assert stream.finish.reason == "abort"
        stream.cancel()
        assert await worker.next(Cancel) == Cancel("r", 0)
        service.submit(request()).cancel()
        await worker.next(Generate)

    serve(scenario)


def test_a_worker_that_dies_in_mid_stream_is_replaced_and_the_stream_goes_on():
    async def scenario(service):
        first = await WorkerEnd.join(service, hello("a"))
        stream = service.submit(request())
        await first.next(Generate)
        first.chunk("r", 0, 10)
        assert await anext(stream) == [(10, None)]
        second = await WorkerEnd.join(service, hello("b"))
        first.protocol.abort()
        assert await second.next(PeerLost) == PeerLost(PeerId("a", 1))
        resumed = (await second.next(Generate)).request
        assert (resumed.attempt, resumed.output_ids) == (1, b"\x0a\x00\x00\x00")
        second.chunk("r", 1, 11, attempt=1, finish="stop")
        assert [delta async for delta in stream] == [[(11, None)]]
        assert service.snapshot_of("m").totals.retries == {"worker_lost": 1}

    serve(scenario)


def test_bad_bytes_cost_only_their_own_connection():
    async def scenario(service):
        good, bad = await WorkerEnd.join(service, hello("a")), await WorkerEnd.join(service, hello("b"))
        bad.protocol._transport.write(b"\x05\x00\x00\x00hello")
        await bad.lost
        assert await good.next(PeerLost) == PeerLost(PeerId("b", 1))
        stream = service.submit(request())
        await good.next(Generate)
        good.chunk("r", 0, 1, finish="stop")
        assert [delta async for delta in stream] == [[(1, None)]]

    serve(scenario)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"token": "wrong"}, "wrong token"),
        ({"token": "sécret"}, "wrong token"),
        (
            {"version": 99},
            f"worker d speaks version 99 of the protocol, this router {OLDEST_PROTOCOL_VERSION} to {PROTOCOL_VERSION}",
        ),
        ({"model": "other"}, "model 'other', this router serves 'm'"),
        ({"page_tokens": 0}, "page_tokens must be at least 1, got 0"),
        ({"page_tokens": 32}, "page_tokens 32, but first has 16"),
        ({"tp": 2}, "1 transfer addresses for tp 2"),
        ({"worker": PeerId("", 1)}, "worker.name is empty"),
        ({"worker": PeerId("first", 2), "pid": 2}, "first is connected with epoch 2, not older than 2"),
        ({"worker": PeerId("first", 1)}, "first is connected with epoch 2, not older than 1"),
    ],
)
def test_a_worker_that_does_not_fit_is_told_why_and_sent_away(changes, reason):
    async def scenario(service):
        await WorkerEnd.join(service, hello("first", epoch=2))
        stranger = await WorkerEnd.connect(service, hello(**changes))
        refused = Postponed if "model" in changes else Rejected  # a model may be added any moment
        assert await stranger.inbox.get() == refused(reason)
        assert await stranger.lost is None
        assert [worker.peer for worker in service.snapshot_of("m").workers] == [PeerId("first", 2)]

    serve(scenario)


def test_a_worker_may_come_back_with_other_pages_than_its_earlier_connection_had():
    async def scenario(service):
        earlier = await WorkerEnd.join(service, hello("first", epoch=1))
        await WorkerEnd.join(service, hello("first", epoch=2, page_tokens=32))
        await earlier.lost
        assert [worker.peer for worker in service.snapshot_of("m").workers] == [PeerId("first", 2)]

    serve(scenario)


@pytest.mark.parametrize("first_message", [Credits(0, 1, 1, 1), Ping(1)])
def test_a_stranger_that_does_not_say_hello_first_is_closed(first_message):
    async def scenario(service):
        stranger = await WorkerEnd.connect(service, first_message)
        assert await stranger.lost is None
        assert stranger.inbox.empty()

    serve(scenario)


def test_a_strangers_large_frame_is_refused_before_it_is_buffered():
    async def scenario(service):
        stranger = await WorkerEnd.connect(service, hello(model="m" * 70_000))
        await stranger.lost
        assert stranger.inbox.empty()

    serve(scenario)


def test_a_stranger_that_says_nothing_is_closed():
    async def scenario(service):
        stranger = await WorkerEnd.connect(service)
        await stranger.lost

    serve(scenario, RouterConfig(dispatch=DispatchConfig(worker_lease_s=0.2)))


def test_a_newer_connection_of_the_same_worker_replaces_the_older():
    async def scenario(service):
        old = await WorkerEnd.join(service, hello(epoch=1))
        stream = service.submit(request())
        await old.next(Generate)
        new = await WorkerEnd.join(service, hello(epoch=2))
        await old.lost
        assert (await new.next(Generate)).request.attempt == 1
        assert [worker.peer for worker in service.snapshot_of("m").workers] == [PeerId("d", 2)]
        stream.cancel()
        await new.next(Cancel)

    serve(scenario)


def test_a_silent_worker_is_lost_and_one_that_answers_pings_is_not():
    async def scenario(service):
        silent, alive = await WorkerEnd.join(service, hello("a")), await WorkerEnd.join(service, hello("b"))
        assert await alive.next(PeerLost) == PeerLost(PeerId("a", 1))
        await silent.lost
        assert [worker.peer.name for worker in service.snapshot_of("m").workers] == ["b"]

    serve(scenario, RouterConfig(dispatch=DispatchConfig(worker_lease_s=1.0)))


def test_a_request_that_finds_no_worker_ends_at_its_queue_deadline():
    async def scenario(service):
        stream = service.submit(request())
        assert not service.has_workers("m")
        assert [delta async for delta in stream] == []
        assert stream.finish.error.kind == "queue_timeout"
        assert stream.record.timeline.finished - stream.record.timeline.queued >= 0.1

    serve(scenario, RouterConfig(dispatch=DispatchConfig(queue_timeout_s=0.1)))


def test_a_request_is_refused_at_once_while_no_worker_can_come_and_none_is_there():
    async def scenario(service):
        service.refuse_without_workers("m", "config.json is gone")
        with pytest.raises(NoWorkersError, match=r"none can be started: config\.json is gone") as refused:
            service.submit(request())
        assert (refused.value.error.kind, refused.value.error.retry_after_s) == ("not_ready", 30.0)
        service.submit(request("resumed")._replace(resumed=Resumed(b"", "")))  # a router before has admitted it
        worker = await WorkerEnd.join(service)
        await worker.next(Generate)
        service.submit(request("served"))
        await worker.next(Generate)

    serve(scenario)


def test_the_context_length_is_that_of_the_longest_decode_worker_and_joins_can_be_awaited():
    async def scenario(service):
        assert service.max_model_len_of("m") is None
        joined = asyncio.ensure_future(service.worker_port.wait_for_join())
        await asyncio.sleep(0)
        await WorkerEnd.join(service, hello("p", role="prefill", max_model_len=9999))
        await joined
        assert service.max_model_len_of("m") is None
        joined = asyncio.ensure_future(service.worker_port.wait_for_join())
        await asyncio.sleep(0)
        assert not joined.done()
        await WorkerEnd.join(service, hello("d"))
        await joined
        assert service.max_model_len_of("m") == 1600

    serve(scenario)


def test_what_is_not_admitted_raises_and_leaves_nothing():
    async def scenario(service):
        service.submit(request("a"))
        service.submit(request("b"))
        with pytest.raises(QueueFullError):
            service.submit(request("c"))
        with pytest.raises(InvalidRequestError, match="in use"):
            service.submit(request("a"))
        assert service.snapshot_of("m").num_requests == 2
        await WorkerEnd.join(service)
        await until(lambda: service.snapshot_of("m").num_waiting == 0)
        with pytest.raises(PromptTooLongError):
            service.submit(request("d", num_prompt=1600))
        assert service.snapshot_of("m").totals.rejections == {
            "queue_full": 1,
            "invalid_request": 1,
            "prompt_too_long": 1,
        }

    serve(scenario)


@pytest.mark.parametrize(
    "bad",
    [
        request()._replace(sampling=SamplingParams(10, temperature=float("nan"))),
        request()._replace(sampling=SamplingParams(10, seed=2**64)),
        request()._replace(sampling=SamplingParams(10, top_k="5")),  # type: ignore[arg-type]
        request()._replace(cache_salt="\ud800"),
        request()._replace(priority=2**70),
        request()._replace(prompt_ids=[2**31]),
    ],
)
def test_a_value_that_would_break_a_workers_connection_is_refused_on_admission(bad):
    async def scenario(service):
        worker = await WorkerEnd.join(service)
        with pytest.raises(InvalidRequestError):
            service.submit(bad)
        service.submit(request())
        await worker.next(Generate)

    serve(scenario)


def test_draining_a_worker_tells_it_and_gives_it_nothing_new():
    async def scenario(service):
        worker = await WorkerEnd.join(service)
        await until(lambda: service.has_workers("m"))
        assert service.worker_port.drain("d")
        assert not service.worker_port.drain("missing")
        await worker.next(Drain)
        assert not service.has_workers("m")
        service.submit(request())
        assert service.snapshot_of("m").num_waiting == 1

    serve(scenario)


def test_shutting_down_lets_running_requests_end_and_takes_no_new_ones():
    async def scenario(service):
        worker = await WorkerEnd.join(service)
        stream = service.submit(request())
        await worker.next(Generate)
        service.stop_admission()
        with pytest.raises(ShuttingDownError):
            service.submit(request("late"))
        idle = asyncio.ensure_future(service.wait_idle())
        await asyncio.sleep(0)
        assert not idle.done()
        worker.chunk("r", 0, 1, finish="stop")
        await idle
        assert [delta async for delta in stream] == [[(1, None)]]

    serve(scenario)


def test_what_the_router_before_has_admitted_is_admitted_until_the_end():
    async def scenario(service):
        service.stop_admission()
        with service.submit(request(resumed=Resumed(b"", ""))):
            assert service.snapshot_of("m").num_waiting == 1
        await service.close()
        with pytest.raises(ShuttingDownError):
            service.submit(request("late", resumed=Resumed(b"", "")))

    serve(scenario)


def test_closing_ends_what_still_runs_and_the_workers_connections():
    async def scenario(service):
        worker = await WorkerEnd.join(service)
        running, queued = service.submit(request("a")), service.submit(request("b", num_prompt=1500))
        await worker.next(Generate)
        await service.close()
        for stream in (running, queued):
            assert [delta async for delta in stream] == []
            assert stream.finish.error.kind == "shutting_down"
        await worker.lost

    serve(scenario)


def test_a_worker_port_without_a_secret_is_refused():
    with pytest.raises(ValueError, match="secret"):
        GenerationService(CONFIG, models={"m": CONFIG.dispatch}, token="")
