"""Several models at one router: each has its workers, queue and limits, and they come and go without the others."""

import asyncio

import pytest
import uvloop

from slipstream.router.config.router_config import DispatchConfig, RouterConfig
from slipstream.router.dispatch.service import GenerationService
from slipstream.router.protocol.generation import (
    GenerateRequest,
    InvalidRequestError,
    NoWorkersError,
    QueueFullError,
    Resumed,
    UnknownModelError,
)
from slipstream.router.protocol.messages import Adopt, Cancel, Drain, Generate, Postponed, SamplingParams
from tests.support.router.worker_end import TOKEN, WorkerEnd, hello

DISPATCH = DispatchConfig(worker_lease_s=60.0, max_queued_requests=2)
CONFIG = RouterConfig(dispatch=DISPATCH)


def request(model, request_id="r", num_prompt=5, **more):
    return GenerateRequest(request_id, [7] * num_prompt, SamplingParams(max_tokens=100), model=model, **more)


def serve(scenario, *models):
    """Runs a scenario with a started service of these models, and closes it afterwards."""

    async def main():
        service = GenerationService(CONFIG, models=dict.fromkeys(models or ("a", "b"), DISPATCH), token=TOKEN)
        await service.start()
        try:
            await scenario(service)
        finally:
            await service.close()
        for model in service.models:
            assert service.snapshot_of(model).num_requests == 0

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(asyncio.wait_for(main(), 30))


def workers_of(service, model):
    return [worker.peer.name for worker in service.snapshot_of(model).workers]


def test_a_request_goes_to_a_worker_of_its_model_and_to_no_other():
    async def scenario(service):
        of_a = await WorkerEnd.join(service, hello("a-0", model="a"))
        of_b = await WorkerEnd.join(service, hello("b-0", model="b", page_tokens=64, max_model_len=100))
        assert (workers_of(service, "a"), workers_of(service, "b")) == (["a-0"], ["b-0"])
        assert (service.max_model_len_of("a"), service.max_model_len_of("b")) == (1600, 100)
        streams = {model: service.submit(request(model, f"r-{model}")) for model in "ab"}
        for model, worker in (("a", of_a), ("b", of_b)):
            assert (await worker.next(Generate)).request.request_id == f"r-{model}"
            worker.chunk(f"r-{model}", 0, 5, finish="stop")
            assert [delta async for delta in streams[model]] == [[(5, None)]]
            assert service.history.get(f"r-{model}").model == model
        assert of_a.inbox.empty()
        assert of_b.inbox.empty()

    serve(scenario)


def test_a_full_queue_of_one_model_leaves_room_in_that_of_another():
    async def scenario(service):
        streams = [service.submit(request("a", f"a{number}")) for number in range(2)]
        with pytest.raises(QueueFullError):
            service.submit(request("a", "a2"))
        streams.append(service.submit(request("b", "b0")))
        assert (service.snapshot_of("a").num_waiting, service.snapshot_of("b").num_waiting) == (2, 1)
        for stream in streams:
            stream.cancel()

    serve(scenario)


def test_an_unknown_model_is_refused_by_name_and_can_be_explained():
    async def scenario(service):
        for resumed in (None, Resumed(b"", "")):
            with pytest.raises(UnknownModelError, match="model 'c' is not served; served are 'a', 'b'"):
                service.submit(request("c", resumed=resumed))
        assert service.history.get("r").model == "c"
        with pytest.raises(UnknownModelError, match="a model must be named"):
            service.submit(request(""))

    serve(scenario)


def test_a_request_id_is_in_use_whichever_model_it_is_for():
    async def scenario(service):
        with service.submit(request("a")):
            for model in "ab":
                with pytest.raises(InvalidRequestError, match="request id 'r' is in use"):
                    service.submit(request(model))
        with service.submit(request("b")):
            pass

    serve(scenario)


def test_a_worker_that_connects_with_another_model_is_lost_from_its_old_one():
    async def scenario(service):
        before = await WorkerEnd.join(service, hello("w", model="a"))
        stream = service.submit(request("a"))
        await before.next(Generate)
        after = await WorkerEnd.join(service, hello("w", epoch=2, model="b"))
        await before.lost
        assert (workers_of(service, "a"), workers_of(service, "b")) == ([], ["w"])
        assert service.snapshot_of("a").num_waiting == 1  # it waits for another worker of its model
        assert service.worker_port.drain("w")
        await after.next(Drain)
        stream.cancel()

    serve(scenario)


def test_the_name_of_a_worker_belongs_to_its_latest_connection_over_all_models():
    async def scenario(service):
        await WorkerEnd.join(service, hello("w", epoch=2, model="a"))
        older = await WorkerEnd.connect(service, hello("w", epoch=1, model="b"))
        assert "w is connected with epoch 2" in (await older.inbox.get()).reason
        assert (workers_of(service, "a"), workers_of(service, "b")) == (["w"], [])

    serve(scenario)


def test_workers_of_a_model_that_is_added_later_are_sent_away_until_then():
    async def scenario(service):
        early = await WorkerEnd.connect(service, hello("c-0", model="c"))
        assert await early.inbox.get() == Postponed("model 'c', this router serves 'a', 'b'")
        assert await early.lost is None
        service.add_model("c", DISPATCH)
        worker = await WorkerEnd.join(service, hello("c-0", model="c"))
        stream = service.submit(request("c"))
        await worker.next(Generate)
        stream.cancel()
        await worker.next(Cancel)

    serve(scenario)


def test_a_model_that_is_removed_finishes_its_requests_then_its_workers_and_then_it_is_gone():
    async def scenario(service):
        kept = service.submit(request("b", "kept"))
        worker = await WorkerEnd.join(service, hello("a-0", model="a"))
        stream = service.submit(request("a"))
        await worker.next(Generate)
        removal = asyncio.ensure_future(service.remove_model("a"))
        await asyncio.sleep(0)
        with pytest.raises(UnknownModelError, match="model 'a' is being removed"):
            service.submit(request("a", "late"))
        worker.chunk("r", 0, 1, finish="stop")
        assert [delta async for delta in stream] == [[(1, None)]]
        await worker.next(Drain)
        newcomer = await WorkerEnd.connect(service, hello("a-1", model="a"))
        assert isinstance(await newcomer.inbox.get(), Postponed)
        assert not removal.done()
        worker.protocol.close()
        await removal
        assert service.models == ("b",)
        with pytest.raises(UnknownModelError, match="model 'a' is not served"):
            service.submit(request("a", "later"))
        assert service.snapshot_of("b").num_waiting == 1
        kept.cancel()
        service.add_model("a", DISPATCH)
        assert workers_of(service, "a") == []

    serve(scenario)


def test_a_worker_that_dies_while_its_model_is_removed_comes_back_for_the_requests_that_run():
    async def scenario(service):
        worker = await WorkerEnd.join(service, hello("a-0", model="a"))
        stream = service.submit(request("a"))
        await worker.next(Generate)
        removal = asyncio.ensure_future(service.remove_model("a"))
        await asyncio.sleep(0)
        worker.protocol.abort()
        again = await WorkerEnd.join(service, hello("a-0", epoch=2, model="a"))
        assert (await again.next(Generate)).request.attempt == 1
        again.chunk("r", 0, 1, finish="stop", attempt=1)
        assert [delta async for delta in stream] == [[(1, None)]]
        await again.next(Drain)
        again.protocol.close()
        await removal
        assert service.models == ("b",)

    serve(scenario)


def test_what_does_not_end_in_time_ends_with_the_model():
    async def scenario(service):
        worker = await WorkerEnd.join(service, hello("a-0", model="a"))
        streams = [service.submit(request("a", name)) for name in ("runs", "waits")]
        await worker.next(Generate)
        await service.remove_model("a", deadline_s=0.01)
        for stream in streams:
            assert [delta async for delta in stream] == []
            assert stream.finish.error.message == "model 'a' has been removed"
        await worker.lost
        assert service.models == ("b",)

    serve(scenario)


def test_a_request_to_a_model_without_workers_waits_for_one_unless_none_can_come():
    async def scenario(service):
        stream = service.submit(request("b"))
        assert service.signals_of("b").num_waiting == 1
        worker = await WorkerEnd.join(service, hello("b-0", model="b"))
        await worker.next(Generate)
        assert service.signals_of("b").num_waiting == 0
        stream.cancel()
        service.refuse_without_workers("a", "its files are gone")
        with pytest.raises(NoWorkersError):
            service.submit(request("a", "refused"))

    serve(scenario)


def test_a_running_request_moves_by_its_id_to_a_worker_of_its_model():
    async def scenario(service):
        source = await WorkerEnd.join(service, hello("b-0", model="b"))
        stream = service.submit(request("b"))
        await source.next(Generate)
        source.chunk("r", 0, 1)
        assert await anext(stream) == [(1, None)]
        await WorkerEnd.join(service, hello("a-0", model="a"))
        destination = await WorkerEnd.join(service, hello("b-1", model="b"))
        service.migrate("unknown", "b-1")
        service.migrate("r", "b-1")
        assert (await destination.next(Adopt)).request.request_id == "r"
        stream.cancel()

    serve(scenario)


def test_a_model_without_requests_has_no_timer():
    async def scenario(service):
        timers = [service._models[model]._timer for model in "ab"]
        stream = service.submit(request("a"))
        await asyncio.sleep(0)
        assert [timer._handle is not None for timer in timers] == [True, False]
        stream.cancel()

    serve(scenario)


def test_a_single_model_need_not_be_named():
    async def scenario(service):
        with service.submit(request("")) as stream:
            assert stream.record.model == "only"

    serve(scenario, "only")
