"""Ensembles of a repository, served by real processes."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import signal
from pathlib import Path

import pytest

from slipstream.router.infer.ensembles import ensemble_request
from slipstream.router.infer.ensembles.ensemble_request import EnsembleRequest
from slipstream.router.infer.ensembles.ensemble_run import EnsembleRun, EnsembleStepRun
from slipstream.router.infer.requests.request_record import InferRecord
from slipstream.router.observability.explain.explain_infer import infer_explanation, infer_text
from slipstream.router.tensor_memory.shared_file import memory_id
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.workers.instances import instance_table
from tests.support.router.ensemble_models import (
    ADD_ONE,
    ADD_UP,
    COUNT_UP,
    DECOUPLED,
    ONE_IN,
    PLAIN,
    SUM,
    chain,
    ensemble,
)
from tests.support.router.in_loop import in_loop
from tests.support.router.repository_lab import RepositoryLab, repository_lab
from tests.support.router.until import until

OPTIONAL = f'{PLAIN} input {{ name: "B" data_type: TYPE_INT32 dims: [ -1 ] optional: true }}'
ONE = {"one": (PLAIN, ADD_ONE)}
LARGE = range(100_000)  # more than a frame takes: these go by shared memory
SLOW = """
class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.05)
        return [response(value_of(request)) for request in requests]
"""
BATCH_SIZE = """
class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.1)
        return [response(np.full_like(value_of(request), len(requests))) for request in requests]
"""
ONCE = """
class TritonPythonModel:
    def execute(self, requests):
        path = os.path.join(os.path.dirname(__file__), "died")
        if not os.path.exists(path):
            open(path, "w").close()
            os._exit(3)
        return [response(value_of(request)) for request in requests]
"""
DIES_AFTER = """
import threading

class TritonPythonModel:
    def execute(self, requests):
        path = os.path.join(os.path.dirname(__file__), "died")
        if not os.path.exists(path):
            open(path, "w").close()
            threading.Timer(0.02, os._exit, (3,)).start()
        return [response(value_of(request)) for request in requests]
"""
TELLS_PID = """
class TritonPythonModel:
    def initialize(self, args):
        open(os.path.join(os.path.dirname(__file__), "pid"), "w").write(str(os.getpid()))

    def execute(self, requests):
        return [response(value_of(request)) for request in requests]
"""
UNTIL_CANCELLED = """
class TritonPythonModel:
    def execute(self, requests):
        path = os.path.join(os.path.dirname(__file__), "state")
        for request in requests:
            sender = request.get_response_sender()
            open(path, "w").write("runs")
            while not sender.is_cancelled():
                time.sleep(0.01)
            open(path, "w").write("cancelled")
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@in_loop
async def test_three_steps_run_one_after_the_other(tmp_path: Path) -> None:
    async with repository_lab(tmp_path, {**ONE, "three": chain("one", "one", "one")}) as lab:
        assert await lab.infer("three", 1, 2) == [[4, 5]]
        with pytest.raises(InferError, match=r"^in ensemble 'three', thirteen$") as failure:
            await lab.infer("three", 12)
        assert failure.value.code is InferErrorCode.INVALID_ARG


@in_loop
async def test_each_response_of_a_decoupled_step_runs_the_rest(tmp_path: Path) -> None:
    models = {**ONE, "count": (DECOUPLED, COUNT_UP), "counts": chain("one", "count", "one")}
    async with repository_lab(tmp_path, models) as lab:
        assert await lab.infer("counts", 3) == [[1], [2], [3], [4]]
        assert lab.service.spec_of("counts").is_decoupled


@in_loop
async def test_a_step_that_cannot_start_refuses_the_request(tmp_path: Path) -> None:
    models = {"sum": (SUM, ADD_UP), "half": ensemble(("sum", {"A": "IN", "B": "B"}, {"OUT": "OUT"}), tensors=OPTIONAL)}
    async with repository_lab(tmp_path, models) as lab:
        with pytest.raises(InferError, match=r"^in ensemble 'half', .*expected 2 inputs but got 1 inputs"):
            lab.submit("half", 1)


@in_loop
async def test_large_tensors_go_from_step_to_step_by_reference_and_between_hosts_as_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memories = itertools.cycle((memory_id(), "of another machine"))
    monkeypatch.setattr(instance_table, "memory_id", lambda: next(memories))
    models = dict.fromkeys(("a", "b", "c", "d"), (PLAIN, ADD_ONE))
    fork = ensemble(
        ("a", {"IN": "IN"}, {"OUT": "x"}),
        ("b", {"IN": "x"}, {"OUT": "y"}),
        ("c", {"IN": "x"}, {"OUT": "z"}),
        ("d", {"IN": "z"}, {"OUT": "u"}),
        ("sum", {"A": "y", "B": "u"}, {"OUT": "OUT"}),
    )
    async with repository_lab(tmp_path, {**models, "sum": (SUM, ADD_UP), "fork": fork}) as lab:
        for _ in range(2):
            assert await lab.infer("fork", *LARGE) == [[2 * value + 5 for value in LARGE]]


@in_loop
async def test_steps_of_several_requests_share_a_batch(tmp_path: Path) -> None:
    batching = f"{PLAIN} max_batch_size: 8 dynamic_batching {{ }}"
    models = {"size": (batching, BATCH_SIZE), "sizes": chain("size", tensors=f"{PLAIN} max_batch_size: 8")}
    async with repository_lab(tmp_path, models) as lab:
        found = await asyncio.gather(*(lab.infer("sizes", 1) for _ in range(4)))
        assert max(value for ((value,),) in found) >= 3


@in_loop
async def test_an_ensemble_is_counted_as_the_sum_of_its_steps(tmp_path: Path) -> None:
    models = {"slow": (PLAIN, SLOW), "two": chain("slow", "slow")}
    async with repository_lab(tmp_path, models) as lab:
        await asyncio.gather(lab.infer("two", 1), lab.infer("two", 1))
        (two,), (slow,) = lab.service.statistics("two"), lab.service.statistics("slow")
        assert (two.inference_count, two.execution_count, slow.inference_count) == (2, 2, 4)
        assert two.durations.compute_infer.ns == pytest.approx(slow.durations.compute_infer.ns, abs=10)
        assert two.durations.queue.ns == pytest.approx(slow.durations.queue.ns, rel=0.02)
        assert two.durations.success.ns > two.durations.compute_infer.ns > 0.18e9


@in_loop
async def test_explain_shows_the_steps_with_their_tensors_and_times(tmp_path: Path) -> None:
    models = {**ONE, "two": chain("one", "one"), "nested": chain("two", "one")}
    async with repository_lab(tmp_path, models) as lab:
        await lab.infer("nested", 1, request_id="R")
        record = lab.service.history.get("R")
        assert record is not None
        explained = infer_explanation(record, 0.0)
        inner, last = explained["steps"]
        assert (inner["model"], inner["reads"], inner["writes"]) == ("two", ["IN"], ["t1"])
        assert [step["instance"] for step in inner["steps"]] == ["one_0", "one_0"]
        assert (last["request_id"], last["reads"], last["writes"]) == ("R.2", ["t1"], ["OUT"])
        assert 0 <= inner["started_s"] < inner["ended_s"] <= last["started_s"] < last["ended_s"]
        text = infer_text(explained)
        assert "step two:1 (IN -> t1)" in text
        assert "    " in text
        assert "step one:1 (t1 -> OUT) by one_0: waited" in text
        assert [one.model for one in lab.service.history.latest()] == ["nested"]


@in_loop
async def test_whole_responses_of_an_ensemble_come_from_the_cache(tmp_path: Path) -> None:
    models = {**ONE, "two": chain("one", "one", more="response_cache { enable: true }")}
    async with repository_lab(tmp_path, models, cache_bytes=1 << 20) as lab:
        assert await lab.infer("two", 1) == [[3]]
        assert await lab.infer("two", 1) == [[3]]
        (two,), (one,) = lab.service.statistics("two"), lab.service.statistics("one")
        assert (two.durations.cache_hit.count, two.durations.cache_miss.count) == (1, 1)
        assert (two.inference_count, two.durations.success.count, one.inference_count) == (1, 2, 2)


@in_loop
async def test_a_request_leaves_nothing_for_the_garbage_collector(tmp_path: Path) -> None:
    async with repository_lab(tmp_path, {**ONE, "two": chain("one", "one")}) as lab:
        gc.collect()
        gc.disable()
        try:
            await lab.infer("two", 1)
            with pytest.raises(InferError):
                await lab.infer("two", 12)
            left = [
                each for each in gc.get_objects() if isinstance(each, EnsembleRun | EnsembleRequest | EnsembleStepRun)
            ]
        finally:
            gc.enable()
        assert left == []


@in_loop
async def test_cancelling_a_request_cancels_the_step_that_runs(tmp_path: Path) -> None:
    models = {**ONE, "long": (DECOUPLED, UNTIL_CANCELLED), "chain": chain("one", "long", "one")}
    async with repository_lab(tmp_path, models) as lab:
        state = lab.folder / "long" / "1" / "state"
        submission, answers = lab.submit("chain", 1)
        await until(lambda: state.exists() and state.read_text() == "runs")
        submission.cancel()
        assert answers.error is not None
        assert answers.error.code is InferErrorCode.CANCELLED
        await until(lambda: state.read_text() == "cancelled")


@in_loop
async def test_a_request_survives_the_death_of_the_instance_of_a_step(tmp_path: Path) -> None:
    models = {**ONE, "once": (PLAIN, ONCE), "chain": chain("one", "once", "one")}
    async with repository_lab(tmp_path, models) as lab:
        assert await lab.infer("chain", *LARGE) == [[value + 2 for value in LARGE]]
        (record,) = lab.service.history.latest()
        assert [len(step.record.executions) for step in record.steps] == [1, 2, 1]


@in_loop
async def test_requests_to_an_ensemble_end_before_its_models_are_unloaded(tmp_path: Path) -> None:
    models = {"slow": (PLAIN, SLOW), "three": chain("slow", "slow", "slow")}
    async with repository_lab(tmp_path, models) as lab:
        _, answers = lab.submit("three", 7)
        await lab.repository.unload("slow")
        assert answers.values == [[7]]
        assert not lab.service.is_ready("three")


@in_loop
async def test_a_tensor_outlives_the_instance_that_has_made_it(tmp_path: Path) -> None:
    models = {**ONE, "slow": (PLAIN, SLOW), "copy": (PLAIN, DIES_AFTER), "chain": chain("copy", "slow", "one")}
    async with repository_lab(tmp_path, models) as lab:
        busy = asyncio.create_task(lab.infer("slow", 1))
        assert await lab.infer("chain", *LARGE) == [[value + 1 for value in LARGE]]
        await busy


@in_loop
async def test_a_step_whose_input_has_gone_with_its_model_is_executed_again(tmp_path: Path) -> None:
    models = {"first": (PLAIN, TELLS_PID), "second": (PLAIN, TELLS_PID), "both": chain("first", "second")}
    async with repository_lab(tmp_path, models) as lab:
        first, second = (int((lab.folder / name / "1" / "pid").read_text()) for name in ("first", "second"))
        os.kill(second, signal.SIGSTOP)
        try:
            answer = asyncio.create_task(lab.infer("both", *LARGE))
            await until(lambda: "second" in [run.model for run in steps_in_execution(lab)])
            files = shared_files(first)
            os.kill(first, signal.SIGKILL)
            await until(lambda: not all(file.exists() for file in files))
        finally:
            os.kill(second, signal.SIGCONT)
        assert await answer == [list(LARGE)]


def shared_files(pid: int) -> list[Path]:
    """Those that a process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [Path(line[line.index("/dev/shm/") :]) for line in lines if "/dev/shm/slipstream" in line]


def steps_in_execution(lab: RepositoryLab) -> list[InferRecord]:
    records = [step.record for record in lab.service.history.latest() for step in record.steps]
    return [record for record in records if record.executions]


@in_loop
async def test_an_output_has_the_labels_of_the_model_that_gives_it(tmp_path: Path) -> None:
    out = 'output { name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] label_filename: "labels.txt" }'
    labelled = f"{ONE_IN} {out}"
    async with repository_lab(tmp_path, {**ONE, "named": (PLAIN, ADD_ONE), "two": chain("one", "named")}) as lab:
        lab.write("named", labelled, ADD_ONE)
        (lab.folder / "named" / "labels.txt").write_text("cat\ndog\n")
        await lab.repository.load("two")
        assert lab.service.spec_of("two").outputs[0].labels == ("cat", "dog")


@in_loop
async def test_no_more_requests_are_in_a_step_than_the_configuration_says(tmp_path: Path) -> None:
    text, _ = chain("size", "size", tensors=f"{PLAIN} max_batch_size: 8")
    limited = text.replace("ensemble_scheduling {", "ensemble_scheduling { max_inflight_requests: 2", 1)
    batching = f"{PLAIN} max_batch_size: 8 dynamic_batching {{ }}"
    async with repository_lab(tmp_path, {"size": (batching, BATCH_SIZE), "sizes": (limited, "")}) as lab:
        requests = [lab.submit("sizes", 1) for _ in range(6)]
        requests[3][0].cancel()  # while it waits
        await until(lambda: all(answers.ended.is_set() for _, answers in requests))
        assert [len(answers.values) for _, answers in requests] == [1, 1, 1, 0, 1, 1]
        runs = [step.record for record in lab.service.history.latest() for step in record.steps]
        first = [run for run in runs if run.request_id.endswith(".1")]
        for run in first:
            same_time = [one for one in first if one.queued_s <= run.queued_s < (one.ended_s or 0.0)]
            assert len(same_time) <= 2


@in_loop
async def test_all_that_wait_for_a_step_which_refuses_them_are_told(tmp_path: Path) -> None:
    text, _ = chain("single")
    limited = text.replace("ensemble_scheduling {", "ensemble_scheduling { max_inflight_requests: 1", 1)
    single = PLAIN.replace("[ -1 ]", "[ 1 ]", 1)  # a shape that the ensemble lets pass, and the step does not
    async with repository_lab(tmp_path, {"single": (single, SLOW), "singles": (limited, "")}) as lab:
        requests = [lab.submit("singles", 1), *(lab.submit("singles", 1, 2) for _ in range(1500))]
        await until(lambda: all(answers.ended.is_set() for _, answers in requests))
        assert requests[0][1].values == [[1]]
        assert all("unexpected shape" in str(answers.error) for _, answers in requests[1:])
        assert await lab.infer("singles", 3) == [[3]]


@in_loop
async def test_a_long_stream_keeps_the_records_of_its_first_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ensemble_request, "MAX_STEP_RECORDS", 5)
    models = {**ONE, "count": (DECOUPLED, COUNT_UP), "counts": chain("count", "one")}
    async with repository_lab(tmp_path, models) as lab:
        assert len(await lab.infer("counts", 12, request_id="R")) == 12
        record = lab.service.history.get("R")
        assert record is not None
        assert (record.num_steps, len(record.steps)) == (13, 5)
        assert infer_text(infer_explanation(record, 0.0)).count("... and 8 further steps") == 1
