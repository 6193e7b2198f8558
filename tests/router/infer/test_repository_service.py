"""Models of a repository, served by real processes: loads, requests, deaths, reloads, calls between models."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
from itertools import pairwise
from pathlib import Path

import orjson
import pytest

from slipstream.router.config.instance_counts_config import InstanceCountsConfig
from slipstream.router.infer.version_runtime import VersionRuntime
from slipstream.router.model_repository.model_draft import ModelDraft
from slipstream.router.model_repository.model_repository import ModelRepository
from slipstream.router.model_repository.sources.repository_watch import ModelStamp
from slipstream.router.process import gc_tuning
from slipstream.router.status.repository_status import repository_status
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.infer_service import IndexEntry
from slipstream.router.tensors.model_spec import ModelPhase
from tests.support.router.in_loop import in_loop
from tests.support.router.repository_lab import RepositoryLab, repository_lab
from tests.support.router.until import until

ONE_IN = 'input { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }'
ONE_OUT = 'output { name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] }'
PLAIN = f"{ONE_IN} {ONE_OUT}"
ON_GPU = f"{PLAIN} instance_group {{ kind: KIND_GPU gpus: [ 0 ] }}"  # of a machine that has none
ON_GPU_JSON = """{
    "backend": "python",
    "input": [{"name": "IN", "data_type": "TYPE_INT32", "dims": [-1]}],
    "output": [{"name": "OUT", "data_type": "TYPE_INT32", "dims": [-1]}],
    "instance_group": [{"kind": "KIND_GPU", "gpus": [0]}]
}"""
DOUBLE = """
class TritonPythonModel:
    def execute(self, requests):
        return [response(2 * value_of(request)) for request in requests]
"""
FRAGILE = """
class TritonPythonModel:
    def execute(self, requests):
        value = value_of(requests[0])[0]
        if value == 13:
            os._exit(3)
        if value < 0:
            raise ValueError("negative")
        time.sleep(value / 1000)
        return [response([os.getpid()])]
"""
ONCE = """
class TritonPythonModel:
    def execute(self, requests):
        path = os.path.join(os.path.dirname(__file__), "died")
        if not os.path.exists(path):
            open(path, "w").close()
            os._exit(3)
        return [response([1])]
"""
ASKER = """
class TritonPythonModel:
    def execute(self, requests):
        return [response([pb_utils.is_model_ready("other")])]
"""
COUNT_UP = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(value_of(request)[0]):
                sender.send(response([number]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
CALLER = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            inputs = [pb_utils.Tensor("IN", value_of(request))]
            call = pb_utils.InferenceRequest(model_name="double", inputs=inputs, requested_output_names=["OUT"])
            answer = call.exec()
            if answer.has_error():
                raise pb_utils.TritonModelException(answer.error().message())
            responses.append(response(pb_utils.get_output_tensor_by_name(answer, "OUT").as_numpy() + 1))
        return responses
"""
SUMS = """
class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            name = request.correlation_id()
            if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
                self.sums[name] = 0
            value = value_of(request).ravel()[0]
            if value == 13:
                os._exit(3)
            self.sums[name] = self.sums.get(name, 0) + int(value)
            responses.append(response([[self.sums[name]]]))
        return responses
"""


def double(lab: RepositoryLab, factor: int) -> None:
    """Writes another version 1 of the model `double`."""
    lab.write("double", PLAIN, DOUBLE.replace("2 *", f"{factor} *"))


@in_loop
async def test_models_load_serve_and_unload(tmp_path: Path) -> None:
    models = {"double": (PLAIN, DOUBLE), "count": (f"{PLAIN} model_transaction_policy {{ decoupled: true }}", COUNT_UP)}
    async with repository_lab(tmp_path, models) as lab:
        assert lab.repository.is_server_ready()
        assert await lab.infer("double", 3, 4) == [[6, 8]]
        assert await lab.infer("count", 3) == [[0], [1], [2]]
        await lab.repository.unload("double")
        with pytest.raises(InferError, match="Request for unknown model: 'double' has no available versions"):
            lab.submit("double", 1)
        await until(lambda: lab.repository.num_running != 2)
        assert lab.repository.index() == [
            IndexEntry("count", "1", ModelPhase.READY),
            IndexEntry("double", "1", ModelPhase.UNAVAILABLE, "unloaded"),
        ]


@in_loop
async def test_the_index_of_the_next_router_shows_what_was_unloaded(tmp_path: Path) -> None:
    models = dict.fromkeys(("kept", "left", "never"), (PLAIN, DOUBLE))
    async with repository_lab(tmp_path, models, load_models=("kept", "left")) as lab:
        await lab.repository.unload("left")
        await until(lambda: lab.repository.num_running == 1)
        expected = [
            IndexEntry("kept", "1", ModelPhase.READY),
            IndexEntry("left", "1", ModelPhase.UNAVAILABLE, "unloaded"),
            IndexEntry("never"),
        ]
        assert lab.repository.index() == expected
        await lab.repository.close()
        await lab.port.stop()
        await lab.listen()
        await lab.repository.start()
        assert lab.repository.index() == expected
        assert lab.repository.is_server_ready()
        await lab.repository.load("left")
        assert await lab.infer("left", 4) == [[8]]


@in_loop
async def test_a_version_that_has_ended_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def left() -> int:
        return sum(isinstance(each, VersionRuntime) for each in gc.get_objects())

    monkeypatch.setattr(gc_tuning, "COLLECTION_PAUSE_S", 0.01)
    gc.collect()
    gc.disable()
    try:
        async with repository_lab(tmp_path, {"double": (PLAIN, DOUBLE)}) as lab:
            before = left()
            await lab.repository.unload("double")
            await until(lambda: left() == before - 1)
    finally:
        gc.enable()


@in_loop
async def test_a_request_whose_instance_dies_is_served_by_the_next_one(tmp_path: Path) -> None:
    async with repository_lab(tmp_path, {"once": (PLAIN, ONCE)}) as lab:
        assert await lab.infer("once", 1, request_id="r") == [[1]]
        record = lab.service.history.get("r")
        assert record is not None
        assert (len(record.executions), record.outcome) == (2, "success")


@in_loop
async def test_a_request_that_kills_every_instance_fails_and_the_instance_comes_back(tmp_path: Path) -> None:
    async with repository_lab(tmp_path, {"fragile": (PLAIN, FRAGILE)}) as lab:
        first = await lab.infer("fragile", 0)
        with pytest.raises(InferError, match=r"Stub process 'fragile_0' is not healthy\."):
            await lab.infer("fragile", 13)
        assert await lab.infer("fragile", 0) != first
        with pytest.raises(InferError, match="message: ValueError: negative"):
            await lab.infer("fragile", -1)


@in_loop
async def test_a_reload_loses_no_request(tmp_path: Path) -> None:
    """Requests go on while versions come and go; a broken version changes nothing."""
    async with repository_lab(tmp_path, {"double": (PLAIN, DOUBLE)}) as lab:
        answers: set[int] = set()
        is_over = False

        async def ask() -> None:
            while not is_over:
                answers.add((await lab.infer("double", 1))[0][0])

        asking = asyncio.create_task(ask())
        double(lab, 3)
        await lab.repository.load("double")
        lab.write("double", PLAIN, "raise RuntimeError('broken')")
        with pytest.raises(InferError, match="version 1 is at UNAVAILABLE state: Internal: RuntimeError: broken"):
            await lab.repository.load("double")
        assert await lab.infer("double", 1) == [[3]]
        double(lab, 4)
        await lab.repository.load("double")
        assert await lab.infer("double", 1) == [[4]]
        is_over = True
        await asking
        assert {2, 3} <= answers <= {2, 3, 4}


@in_loop
async def test_an_unmodified_model_is_not_loaded_again(tmp_path: Path) -> None:
    async with repository_lab(tmp_path, {"fragile": (PLAIN, FRAGILE)}) as lab:
        before = await lab.infer("fragile", 0)
        await lab.repository.load("fragile")
        assert await lab.infer("fragile", 0) == before


@in_loop
async def test_files_and_configuration_can_come_with_a_load(tmp_path: Path) -> None:
    async with repository_lab(tmp_path, {"double": (PLAIN, DOUBLE)}) as lab:
        config = orjson.dumps(
            {
                "backend": "python",
                "input": [{"name": "IN", "data_type": "TYPE_INT32", "dims": [-1]}],
                "output": [{"name": "OUT", "data_type": "TYPE_INT32", "dims": [-1]}],
            }
        ).decode()
        code = (tmp_path / "models/double/1/model.py").read_text().replace("2 *", "5 *")
        await lab.repository.load("double", config, {"7/model.py": code.encode()})
        assert await lab.infer("double", 1) == [[5]]
        assert lab.service.spec_of("double").version == "7"
        await lab.repository.load("double")
        assert await lab.infer("double", 1) == [[2]]


@in_loop
async def test_models_call_models(tmp_path: Path) -> None:
    async with repository_lab(tmp_path, {"double": (PLAIN, DOUBLE), "caller": (PLAIN, CALLER)}) as lab:
        assert await lab.infer("caller", 4, request_id="outer", tenant="t") == [[9]]
        inner = next(record for record in lab.service.history.latest() if record.model == "double")
        assert (inner.parent_id, inner.tenant) == ("outer", "t")
        await lab.repository.unload("double")
        with pytest.raises(
            InferError, match=r"Failed for execute the inference request\. Model 'double' is not ready\."
        ):
            await lab.infer("caller", 4)


@in_loop
async def test_a_sequence_fails_with_its_instance_and_can_begin_anew(tmp_path: Path) -> None:
    config = (
        'max_batch_size: 2 input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } '
        'output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } sequence_batching { oldest { } }'
    )
    async with repository_lab(tmp_path, {"sums": (config, SUMS)}) as lab:
        assert await lab.in_sequence("sums", 7, 1, start=True) == 1
        assert await lab.in_sequence("sums", 8, 2, start=True) == 2
        assert await lab.in_sequence("sums", 7, 5) == 6
        with pytest.raises(InferError, match=r"'sums_0' is not healthy\. Sequence 8 of model 'sums' has ended with it"):
            await lab.in_sequence("sums", 8, 13)
        with pytest.raises(InferError, match="must specify the START flag"):
            await lab.in_sequence("sums", 7, 1)
        assert await lab.in_sequence("sums", 7, 3, start=True) == 3


@in_loop
async def test_a_running_request_that_is_cancelled_gives_its_memory_back_later(tmp_path: Path) -> None:
    async with repository_lab(tmp_path, {"fragile": (PLAIN, FRAGILE)}) as lab:
        submission, answers = lab.submit("fragile", 300)
        await until(lambda: any(record.executions for record in lab.service.history.latest()))
        submission.cancel()
        assert answers.error is not None
        assert answers.error.code is InferErrorCode.CANCELLED
        assert lab.num_held == 1
        await until(lambda: lab.num_held == 0)


@in_loop
async def test_the_response_cache_answers_without_an_execution(tmp_path: Path) -> None:
    cached = f"{PLAIN} response_cache {{ enable: true }}"
    async with repository_lab(tmp_path, {"double": (cached, DOUBLE)}, cache_bytes=1 << 20) as lab:
        assert await lab.infer("double", 3) == [[6]]
        assert await lab.infer("double", 3) == [[6]]
        statistics = lab.service.statistics("double")[0]
        assert (statistics.execution_count, statistics.durations.success.count) == (1, 2)
        assert (statistics.durations.cache_hit.count, statistics.durations.cache_miss.count) == (1, 1)
        double(lab, 3)
        await lab.repository.load("double")
        assert await lab.infer("double", 3) == [[9]]


@in_loop
async def test_a_rate_limit_lets_one_of_two_models_execute_at_a_time(tmp_path: Path) -> None:
    limited = f'{PLAIN} instance_group {{ rate_limiter {{ resources {{ name: "R" global: true count: 1 }} }} }}'
    code = FRAGILE.replace("[os.getpid()]", "[int(1e6 * began % 2e9), int(1e6 * time.monotonic() % 2e9)]")
    code = code.replace("        time.sleep", "        began = time.monotonic()\n        time.sleep")
    models = {"a": (limited, code), "b": (limited, code)}
    async with repository_lab(tmp_path, models, rate_limit="execution_count") as lab:
        spans = await asyncio.gather(*(lab.infer(name, 20) for name in ("a", "b", "a", "b")))
        ordered = sorted(span[0] for span in spans)
        assert all(first[1] <= second[0] for first, second in pairwise(ordered))


@in_loop
async def test_the_poll_loads_changes_and_unloads_what_is_gone(tmp_path: Path) -> None:
    settings = {"control_mode": "poll", "load_models": (), "poll_s": 0.1}
    async with repository_lab(tmp_path, {"double": (PLAIN, DOUBLE)}, **settings) as lab:
        polling = asyncio.create_task(lab.repository.poll())
        await asyncio.sleep(0)
        lab.write("more", PLAIN, DOUBLE)
        await until(lambda: lab.service.is_ready("more"))
        (tmp_path / "models/double/config.pbtxt").unlink()
        (tmp_path / "models/double/1/model.py").unlink()
        (tmp_path / "models/double/1").rmdir()
        (tmp_path / "models/double").rmdir()
        await until(lambda: not lab.service.is_ready("double"))
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)


@in_loop
async def test_a_model_that_fails_at_the_start_makes_the_server_unready(tmp_path: Path) -> None:
    models = {"double": (PLAIN, DOUBLE), "broken": (PLAIN, "raise RuntimeError('broken')")}
    async with repository_lab(tmp_path, models, exit_on_error=False) as lab:
        assert not lab.repository.is_server_ready()
        assert lab.service.is_ready("double")
        entry = next(entry for entry in lab.repository.index() if entry.name == "broken")
        assert entry.phase is ModelPhase.UNAVAILABLE
        assert "RuntimeError: broken" in entry.reason


@in_loop
async def test_readiness_while_models_load(tmp_path: Path) -> None:
    slow = "import time" + chr(10) + "time.sleep(0.5)" + chr(10) + DOUBLE
    async with repository_lab(tmp_path, {"double": (PLAIN, DOUBLE)}) as lab:
        lab.write("double", PLAIN, slow)
        reload = asyncio.create_task(lab.repository.load("double"))
        await until(lambda: lab.port.ledger.num_launches == 2)
        assert lab.repository.is_server_ready()  # the version before serves
        await reload
        lab.write("more", PLAIN, slow)
        load = asyncio.create_task(lab.repository.load("more"))
        await until(lambda: IndexEntry("more", "1", ModelPhase.LOADING) in lab.repository.index())
        assert not lab.repository.is_server_ready()
        await load
        assert lab.repository.is_server_ready()


@in_loop
async def test_without_strict_readiness_a_server_is_ready_once_it_has_started(tmp_path: Path) -> None:
    models = {"broken": (PLAIN, "raise RuntimeError('broken')")}
    async with repository_lab(tmp_path, models, exit_on_error=False, strict_readiness=False) as lab:
        assert lab.repository.is_server_ready()


def shown_models(lab: RepositoryLab) -> list[tuple[str, str, str, str]]:
    """Name, version, state and reason of all models, as the status shows them."""
    repository = lab.repository
    status = repository_status(repository.index(), repository.failures, is_ready=True, control_mode="none", ledger={})
    return [(one["name"], one["version"], one["state"], one["reason"]) for one in status["models"]]


@in_loop
async def test_a_model_that_cannot_be_read_has_a_reason(tmp_path: Path) -> None:
    async with repository_lab(tmp_path, {"wrong": ("nonsense { }", DOUBLE)}, exit_on_error=False) as lab:
        ((*what, reason),) = shown_models(lab)
        assert what == ["wrong", "", "UNAVAILABLE"]
        assert 'no field named "nonsense"' in reason
        lab.write("wrong", PLAIN, DOUBLE)
        await lab.repository.load("wrong")
        assert shown_models(lab) == [("wrong", "1", "READY", "")]


@pytest.mark.parametrize("is_refused", [True, False])
@in_loop
async def test_settings_of_a_model_that_never_comes_end_the_start_unless_it_goes_on_all_the_same(
    tmp_path: Path, is_refused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, object] = {"control_mode": "none", "load_models": (), "exit_on_error": is_refused}
    settings["instances"] = {"duoble": InstanceCountsConfig(count=2)}
    text = "repository.instances.duoble: the repository has no model 'duoble'"
    with pytest.raises(ValueError, match=text) if is_refused else contextlib.nullcontext():
        async with repository_lab(tmp_path, {"double": (PLAIN, DOUBLE)}, **settings) as lab:
            assert lab.repository.is_server_ready()
    assert (text in caplog.text) == (not is_refused)


@in_loop
async def test_a_model_without_a_version_that_its_policy_wants_is_listed_and_makes_the_server_unready(
    tmp_path: Path,
) -> None:
    policy = f"{PLAIN} version_policy {{ specific {{ versions: [5] }} }}"
    async with repository_lab(tmp_path, {"none": (policy, DOUBLE)}, exit_on_error=False) as lab:
        assert lab.repository.index() == [IndexEntry("none")]
        assert lab.repository.index(only_ready=True) == []
        reason = "at least one version must be available under the version policy of model 'none'"
        assert shown_models(lab) == [("none", "", "UNAVAILABLE", reason)]
        assert not lab.repository.is_server_ready()
        await lab.repository.unload("none")
        assert lab.repository.is_server_ready()


@in_loop
async def test_a_failed_reload_is_shown_at_the_version_that_serves(tmp_path: Path) -> None:
    settings: dict[str, object] = {"control_mode": "poll", "load_models": (), "poll_s": 0.05}
    async with repository_lab(tmp_path, {"double": (PLAIN, DOUBLE)}, **settings) as lab:
        polling = asyncio.create_task(lab.repository.poll())
        lab.write("double", PLAIN, "def (")
        await until(lambda: bool(lab.repository.failures))
        ((*what, reason),) = shown_models(lab)
        assert what == ["double", "1", "READY"]
        assert reason.startswith("not reloaded: version 1 is at UNAVAILABLE state: ")
        assert "SyntaxError" in reason
        assert lab.repository.index() == [IndexEntry("double", "1", ModelPhase.READY)]
        double(lab, 3)
        await until(lambda: not lab.repository.failures)
        assert shown_models(lab) == [("double", "1", "READY", "")]
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)


@in_loop
async def test_a_configuration_that_cannot_be_read_any_more_counts_once(tmp_path: Path) -> None:
    async with repository_lab(tmp_path, {"double": (PLAIN, DOUBLE)}) as lab:
        lab.write("double", "nonsense { }", DOUBLE)
        with pytest.raises(InferError):
            await lab.repository.load("double")
        ((*what, reason),) = shown_models(lab)
        assert what == ["double", "1", "READY"]
        assert 'no field named "nonsense"' in reason


@in_loop
async def test_a_load_that_fails_before_it_has_begun_leaves_nothing(tmp_path: Path) -> None:
    async with repository_lab(tmp_path, {"gpu": (ON_GPU, DOUBLE)}, exit_on_error=False) as lab:
        assert lab.repository.num_running == 0
        (entry,) = lab.repository.index()
        assert entry.phase is ModelPhase.UNAVAILABLE
        with pytest.raises(InferError, match="load failed for model 'gpu'"):
            await lab.repository.load("gpu", files={"1/model.py": DOUBLE.encode()}, config_json=ON_GPU_JSON)
        assert lab.repository.num_running == 0


@in_loop
async def test_a_fault_of_the_completion_fails_the_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def complete(*_: object) -> None:
        raise KeyError("what was forgotten")

    monkeypatch.setattr(ModelDraft, "complete", complete)
    async with repository_lab(tmp_path, {"double": (PLAIN, DOUBLE)}, exit_on_error=False, load_retries=0) as lab:
        (entry,) = lab.repository.index()
        assert (entry.phase, entry.reason) == (ModelPhase.UNAVAILABLE, "Internal: KeyError('what was forgotten')")


@in_loop
async def test_a_reload_that_only_changes_the_instances_can_fail(tmp_path: Path) -> None:
    async with repository_lab(tmp_path, {"double": (PLAIN, DOUBLE)}) as lab:
        lab.write("double", ON_GPU, DOUBLE)
        with pytest.raises(InferError, match="load failed for model 'double'"):
            await lab.repository.load("double")
        assert await lab.infer("double", 3) == [[6]]


@in_loop
async def test_the_poll_goes_on_whatever_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"control_mode": "poll", "load_models": (), "poll_s": 0.05}
    async with repository_lab(tmp_path, {}, **settings) as lab:
        stamps, failed = ModelRepository.stamps, asyncio.Event()

        def stamps_that_fail(repository: ModelRepository) -> dict[str, ModelStamp]:
            monkeypatch.setattr(ModelRepository, "stamps", stamps)
            loop.call_soon_threadsafe(failed.set)
            raise KeyError("what was forgotten")

        loop = asyncio.get_running_loop()
        monkeypatch.setattr(ModelRepository, "stamps", stamps_that_fail)
        polling = asyncio.create_task(lab.repository.poll())
        await failed.wait()
        lab.write("double", PLAIN, DOUBLE)
        await until(lambda: lab.service.is_ready("double"))
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)


@in_loop
async def test_an_instance_of_an_earlier_router_needs_resources_too(tmp_path: Path) -> None:
    limited = f'{PLAIN} instance_group {{ rate_limiter {{ resources {{ name: "R" count: 1 }} }} }}'
    async with repository_lab(tmp_path, {"a": (limited, FRAGILE)}, rate_limit="execution_count") as lab:
        first = await lab.infer("a", 0)
        await lab.port.stop()
        await lab.listen()
        await lab.repository.start()
        assert await lab.infer("a", 0) == first


@in_loop
async def test_a_model_is_answered_although_its_question_meets_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with repository_lab(tmp_path, {"asker": (PLAIN, ASKER)}) as lab:

        def is_ready(*_: object) -> bool:
            raise KeyError("what was forgotten")

        monkeypatch.setattr(lab.service, "is_ready", is_ready)
        with pytest.raises(InferError, match="what was forgotten"):
            await lab.infer("asker", 1)


@in_loop
async def test_instances_that_are_killed_under_load_lose_no_stateless_request(tmp_path: Path) -> None:
    config = (
        'max_batch_size: 4 input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } '
        'output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } dynamic_batching { } instance_group { count: 2 }'
    )
    code = FRAGILE.replace("value_of(requests[0])[0]", "value_of(requests[0]).ravel()[0]")
    code = code.replace("[response([os.getpid()])]", "[response([[os.getpid()]]) for _ in requests]")
    async with repository_lab(tmp_path, {"busy": (config, code)}, request_retries=4) as lab:
        pids: list[int] = []

        async def ask(num_requests: int) -> None:
            for _ in range(num_requests):
                pids.append((await lab.infer("busy", 2))[0][0])

        asking = [asyncio.create_task(ask(40)) for _ in range(8)]
        killed: set[int] = set()
        for _ in range(4):
            await until(lambda: bool(pids) and pids[-1] not in killed)
            killed.add(pids[-1])
            os.kill(pids[-1], signal.SIGKILL)
        await asyncio.gather(*asking)
        statistics = lab.service.statistics("busy")[0]
        assert (statistics.durations.success.count, statistics.durations.fail.count) == (320, 0)
        assert len(killed) == 4
