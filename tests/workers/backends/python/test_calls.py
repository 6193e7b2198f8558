"""What a model asks of the server: other models, loading, metrics, the log."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.workers.instance_process import InstanceProcess, request, running_instance

CALLER = """
    import asyncio
    import numpy as np
    import threading
    import triton_python_backend_utils as pb_utils

    def call(number):
        return pb_utils.InferenceRequest(
            model_name=b"other", requested_output_names=["B"], flags=np.int64(0), request_id="mine", correlation_id=9,
            inputs=[pb_utils.Tensor("A", np.array([number], dtype=np.int32))], parameters={"k": 1})

    def total(responses):
        for response in responses:
            if response.has_error():
                raise pb_utils.TritonModelException(response.error().message())
        outputs = [pb_utils.get_output_tensor_by_name(response, "B").as_numpy() for response in responses]
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.sum(outputs, axis=0, dtype=np.int32))])

    async def gathered():
        return await asyncio.gather(*[call(number).async_exec() for number in (1, 2, 3)])

    class TritonPythonModel:
        def initialize(self, args):
            try:
                call(1).exec()
            except pb_utils.TritonModelException as error:
                print(error)

        def execute(self, requests):
            what = requests[0].request_id()
            if what == "sync":
                return [total([call(5).exec()])]
            if what == "loop":
                return [total(asyncio.run(gathered()))]
            if what == "threads":
                found = []
                threads = [threading.Thread(target=lambda: found.append(call(4).exec())) for _ in range(3)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                return [total(found)]
            if what == "decoupled":
                responses = list(call(1).exec(decoupled=True))
                assert not responses[-1].output_tensors()
                return [total(responses[:-1])]
            if what == "cancel":
                responses = call(1).exec(decoupled=True)
                next(responses)
                responses.cancel()
                return [total([next(responses)])]
            if what == "load":
                pb_utils.load_model("other", config="{}", files={"file:1/model.py": b"pass"})
                assert pb_utils.is_model_ready("other", "1") is True
                try:
                    pb_utils.unload_model("other")
                except pb_utils.TritonModelException as error:
                    return [pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))]
"""
ASYNC_CALLER = (
    CALLER.replace("def execute(self, requests):", "def sync(self, requests):")
    + """
        async def execute(self, requests):
            return [total(await gathered())]
"""
)

DECOUPLED_CALLER = (
    CALLER.replace("def execute(self, requests):", "def sync(self, requests):")
    + """
        async def execute(self, requests):
            response = total(await gathered())
            requests[0].get_response_sender().send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
)


def answer(instance: InstanceProcess, *, num_calls: int, times: int = 2) -> None:
    """Answers calls as a model that multiplies; the last call first."""
    calls = []
    for _ in range(num_calls):
        call = instance.peer.receive("call")
        calls.append((call["call"], int(instance.peer.array(call["request"]["inputs"][0])[0])))
    for number, value in reversed(calls):
        outputs = [["B", "INT32", [1], [0, 4]]]
        instance.peer.send(
            {"type": "call_response", "call": number, "response": {"outputs": outputs}, "final": True},
            np.int32(times * value).tobytes(),
        )


def test_a_call_carries_the_request_and_returns_the_response(tmp_path: Path) -> None:
    with running_instance(tmp_path, CALLER) as instance:
        instance.initialize({"OUT": "INT32"})
        instance.start_execution(request(1, id="sync"))
        call = instance.peer.receive("call")
        wanted = call["request"]
        assert instance.peer.array(wanted.pop("inputs")[0]).tolist() == [5]
        assert wanted == {
            "id": "mine",
            "correlation_id": 9,
            "flags": 0,
            "timeout_us": 0,
            "priority": 0,
            "parameters": {"k": 1},
            "outputs": ["B"],
            "model": "other",
            "model_version": "",
            "decoupled": False,
            "parent": 1,
        }
        outputs = [["B", "INT32", [1], [0, 4]]]
        instance.peer.send(
            {"type": "call_response", "call": call["call"], "response": {"outputs": outputs}, "final": True},
            np.int32(7).tobytes(),
        )
        executed = instance.peer.receive("executed")
        assert instance.peer.array(executed["responses"][0]["outputs"][0]).tolist() == [7]
        assert "BLS is only supported during the 'execute' function." in instance.log.read_text()


@pytest.mark.parametrize(
    ("code", "what", "sum_of_inputs"), [(CALLER, "loop", 6), (CALLER, "threads", 12), (ASYNC_CALLER, "", 6)]
)
def test_calls_run_at_the_same_time(tmp_path: Path, code: str, what: str, sum_of_inputs: int) -> None:
    with running_instance(tmp_path, code) as instance:
        instance.initialize({"OUT": "INT32"})
        for _ in range(3):
            instance.start_execution(request(1, id=what))
            answer(instance, num_calls=3)
            executed = instance.peer.receive("executed")
            assert executed["error"] is None
            assert instance.peer.array(executed["responses"][0]["outputs"][0]).tolist() == [2 * sum_of_inputs]


def test_coroutines_in_the_background_call_while_other_batches_come(tmp_path: Path) -> None:
    with running_instance(tmp_path, DECOUPLED_CALLER) as instance:
        instance.initialize({"OUT": "INT32"}, is_decoupled=True)
        for n in range(5):
            assert instance.execute(request(n))["error"] is None
        answer(instance, num_calls=15)
        numbers = []
        for _ in range(5):
            message = instance.peer.receive("response")
            assert instance.peer.array(message["response"]["outputs"][0]).tolist() == [12]
            numbers.append(message["n"])
        assert sorted(numbers) == [0, 1, 2, 3, 4]


def test_a_failed_call_is_a_response_with_an_error(tmp_path: Path) -> None:
    with running_instance(tmp_path, CALLER) as instance:
        instance.initialize({"OUT": "INT32"})
        instance.start_execution(request(1, id="sync"))
        call = instance.peer.receive("call")
        response = {"outputs": [], "error": ["NOT_FOUND", "no such model"], "parameters": None}
        instance.peer.send({"type": "call_response", "call": call["call"], "response": response, "final": True})
        assert "no such model" in instance.peer.receive("executed")["error"]


def test_a_response_whose_memory_is_gone_is_an_error_of_its_call(tmp_path: Path) -> None:
    with running_instance(tmp_path, CALLER) as instance:
        instance.initialize({"OUT": "INT32"})
        instance.start_execution(request(1, id="sync"))
        call = instance.peer.receive("call")
        response = {"outputs": [["B", "INT32", [1], ["slipstream-of-the-dead-1", 0, 4]]]}
        instance.peer.send({"type": "call_response", "call": call["call"], "response": response, "final": True})
        assert instance.peer.receive("release")["places"] == [["slipstream-of-the-dead-1", 0]]
        assert "The response of the model cannot be read" in instance.peer.receive("executed")["error"]
        instance.start_execution(request(2, id="sync"))
        assert instance.peer.receive("call")["request"]["parent"] == 2


def test_responses_of_a_decoupled_model_come_one_by_one(tmp_path: Path) -> None:
    with running_instance(tmp_path, CALLER) as instance:
        instance.initialize({"OUT": "INT32"})
        instance.start_execution(request(1, id="decoupled"))
        call = instance.peer.receive("call")
        assert call["request"]["decoupled"] is True
        response = {"outputs": [["B", "INT32", [1], [0, 4]]]}
        for number in (3, 4):
            instance.peer.send(
                {"type": "call_response", "call": call["call"], "response": response, "final": False},
                np.int32(number).tobytes(),
            )
        instance.peer.send({"type": "call_response", "call": call["call"], "response": None, "final": True})
        executed = instance.peer.receive("executed")
        assert instance.peer.array(executed["responses"][0]["outputs"][0]).tolist() == [7]


def test_a_call_can_be_cancelled(tmp_path: Path) -> None:
    with running_instance(tmp_path, CALLER) as instance:
        instance.initialize({"OUT": "INT32"})
        instance.start_execution(request(1, id="cancel"))
        call = instance.peer.receive("call")["call"]
        instance.peer.send({"type": "call_response", "call": call, "response": {"outputs": []}, "final": False})
        assert instance.peer.receive("call_cancel")["call"] == call
        response = {"outputs": [], "error": ["CANCELLED", "cancelled by the model"]}
        instance.peer.send({"type": "call_response", "call": call, "response": response, "final": True})
        assert "cancelled by the model" in instance.peer.receive("executed")["error"]


def test_models_are_loaded_and_unloaded(tmp_path: Path) -> None:
    with running_instance(tmp_path, CALLER) as instance:
        instance.initialize({"OUT": "INT32"})
        instance.start_execution(request(1, id="load"))
        for action, error, value in (("load", None, None), ("is_ready", None, True), ("unload", "not now", None)):
            control = instance.peer.receive("control")
            assert (control["action"], control["model"]) == (action, "other")
            if action == "load":
                offset, num_bytes = control["files"]["file:1/model.py"]
                assert instance.peer.payload[offset : offset + num_bytes] == b"pass"
            instance.peer.send({"type": "control_result", "call": control["call"], "error": error, "value": value})
        response = instance.peer.receive("executed")["responses"][0]
        prefix = "Failed to unload model: Failed to process the request for model 'model_0_0', message: "
        assert response["error"] == ["INTERNAL", prefix + "not now"]


TELLER = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.family = pb_utils.MetricFamily("seen", "Requests.", pb_utils.MetricFamily.COUNTER)
            self.counter = self.family.Metric(labels={"a": "b"})
            self.took = pb_utils.MetricFamily("took", "Seconds.", pb_utils.MetricFamily.HISTOGRAM)
            self.histogram = self.took.Metric(labels={}, buckets=[0.1, 1.0])

        def execute(self, requests):
            self.counter.increment(2)
            self.counter.increment(1)
            for value in (0.05, 0.1, 0.5, 3):
                self.histogram.observe(value)
            pb_utils.Logger.log_warn("careful")
            pb_utils.Logger.log("plain", pb_utils.Logger.VERBOSE)
            assert self.counter.value() == 3
            family = pb_utils.MetricFamily("short", "Ends.", pb_utils.MetricFamily.GAUGE)
            gauge = family.Metric(labels={})
            same = pb_utils.MetricFamily("short", "Another text.", pb_utils.MetricFamily.GAUGE)
            gauge.set(2)
            assert same.Metric(labels={}).value() == 2
            del family, same
            try:
                gauge.value()
            except pb_utils.TritonModelException as error:
                assert "has been deleted" in str(error)
            else:
                raise AssertionError("a metric without its family")
            return [pb_utils.InferenceResponse() for _ in requests]
"""


def test_metrics_and_log_reach_the_router(tmp_path: Path) -> None:
    with running_instance(tmp_path, TELLER) as instance:
        instance.initialize({"OUT": "INT32"})
        assert instance.execute(request(1))["error"] is None
        logs = [instance.peer.receive("log") for _ in range(2)]
        assert [(log["level"], log["text"], log["line"]) for log in logs] == [
            ("warn", "careful", 16),
            ("verbose", "plain", 17),
        ]
        assert logs[0]["file"] == str(instance.version_folder / "model.py")
        seen = {}
        while seen.get("seen", {}).get("metrics") != [{"labels": {"a": "b"}, "value": 3.0}]:
            seen.update({family["name"]: family for family in instance.peer.receive("metrics")["families"]})
        while seen.get("short", {}).get("metrics") != []:
            seen.update({family["name"]: family for family in instance.peer.receive("metrics")["families"]})
        assert seen["short"]["description"] == "Ends."
        assert (seen["seen"]["kind"], seen["seen"]["description"]) == ("counter", "Requests.")
        assert seen["took"]["metrics"] == [{"labels": {}, "buckets": [0.1, 1.0], "counts": [2, 1, 1], "sum": 3.65}]
