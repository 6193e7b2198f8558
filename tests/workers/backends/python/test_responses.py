"""Responses by senders and from event loops; requests that are cancelled, rescheduled, dropped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.workers.instance_process import request, running_instance

COUNTDOWN = """
    import threading
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                threading.Thread(target=self.count, args=(request.get_response_sender(), request)).start()
            return None

        def count(self, sender, request):
            count = int(request.inputs()[0].as_numpy()[0])
            for number in range(count):
                response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([number], dtype=np.int32))])
                is_last = number == count - 1 and request.request_id() == "with the last"
                sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if is_last else 0)
            if request.request_id() != "with the last":
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


@pytest.mark.parametrize(("id", "num_responses"), [("with the last", 3), ("after the last", 4)])
def test_a_decoupled_model_responds_from_a_thread_after_execute(tmp_path: Path, id: str, num_responses: int) -> None:
    with running_instance(tmp_path, COUNTDOWN) as instance:
        instance.initialize({"OUT": "INT32"}, is_decoupled=True)
        wanted = request(7, [["N", "INT32", [1], [0, 4]]], id=id)
        executed = instance.execute(wanted, payload=np.int32(3).tobytes())
        assert (executed["error"], executed["responses"]) == (None, [])
        responses = []
        for _ in range(num_responses):
            message = instance.peer.receive("response")
            assert message["n"] == 7
            response = message["response"]
            number = None if response is None else instance.peer.array(response["outputs"][0]).item()
            responses.append((number, message["final"]))
        numbers = [0, 1, 2] if num_responses == 3 else [0, 1, 2, None]
        assert responses == [(number, index == num_responses - 1) for index, number in enumerate(numbers)]
        assert instance.finalize() == 0


SENDER = """
    import triton_python_backend_utils as pb_utils

    FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

    class TritonPythonModel:
        def execute(self, requests):
            request = requests[0]
            what = request.request_id()
            sender = request.get_response_sender()
            if what == "drop":
                return None
            if what == "return":
                return [pb_utils.InferenceResponse()]
            if what == "reschedule":
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                return [None]
            if what == "respond and reschedule":
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                sender.send(pb_utils.InferenceResponse())
                return None
            if what == "final first":
                sender.send(flags=FINAL)
            if what == "no flag":
                sender.send()
            if what == "flag":
                sender.send(pb_utils.InferenceResponse(), 5)
            sender.send(pb_utils.InferenceResponse(), FINAL)
            if what == "two":
                sender.send(pb_utils.InferenceResponse(), FINAL)
            if what == "both":
                return [pb_utils.InferenceResponse()]
            return [None]
"""


def test_the_order_of_responses_is_checked_with_triton_s_texts(tmp_path: Path) -> None:
    with running_instance(tmp_path, SENDER) as instance:
        instance.initialize({"OUT": "INT32"})
        texts = {
            what: str(instance.execute(request(1, id=what))["error"]).partition("\n")[0]
            for what in ("two", "both", "final first", "no flag", "flag")
        }
        prefix = "TritonModelException: "
        assert texts == {
            "two": prefix + "Unable to send response. Non-decoupled model cannot send more than one response.",
            "both": "Unable to send response. Non-decoupled model cannot send more than one response.",
            "final first": prefix
            + "Unable to send response. Non-decoupled model cannot send complete final before sending a response.",
            "no flag": prefix + "Inference Response object must be provided when the response flags is set to zero.",
            "flag": prefix + "Unable to send response. Unsupported flag provided.",
        }


def test_a_model_that_is_not_decoupled_may_use_a_sender(tmp_path: Path) -> None:
    with running_instance(tmp_path, SENDER) as instance:
        instance.initialize({"OUT": "INT32"})
        executed = instance.execute(request(1, id="one"))
        assert (executed["error"], executed["responses"]) == (None, [None])
        message = instance.peer.receive("response")
        assert (message["n"], message["final"], message["response"]["error"]) == (1, True, None)
        executed = instance.execute(request(2, id="return"))
        assert executed["responses"][0]["outputs"] == []
        assert not instance.peer.has_unread("response")


def test_a_request_that_the_model_drops_ends(tmp_path: Path) -> None:
    with running_instance(tmp_path, SENDER) as instance:
        instance.initialize({"OUT": "INT32"})
        assert instance.execute(request(1, id="drop"))["error"] is None
        message = instance.peer.receive("response")
        assert (message["n"], message["final"]) == (1, True)
        assert message["response"]["error"] == ["INTERNAL", "The model has dropped the request without a response."]


def test_a_rescheduled_request_is_named(tmp_path: Path) -> None:
    with running_instance(tmp_path, SENDER) as instance:
        instance.initialize({"OUT": "INT32"})
        executed = instance.execute(request(5, id="reschedule"))
        assert (executed["error"], executed["responses"], executed["rescheduled"]) == (None, [None], [5])
        assert not instance.peer.has_unread("response")


def test_a_decoupled_request_may_be_rescheduled_after_a_response(tmp_path: Path) -> None:
    with running_instance(tmp_path, SENDER) as instance:
        instance.initialize({"OUT": "INT32"}, is_decoupled=True)
        executed = instance.execute(request(5, id="respond and reschedule"))
        assert (executed["error"], executed["rescheduled"]) == (None, [5])
        message = instance.peer.receive("response")
        assert (message["n"], message["final"]) == (5, False)
        assert not instance.peer.has_unread("response")


UNTIL_CANCELLED = """
    import time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            request = requests[0]
            asked = request if request.request_id() == "request" else request.get_response_sender()
            while not asked.is_cancelled():
                time.sleep(0.001)
            error = pb_utils.TritonError("cancelled", pb_utils.TritonError.CANCELLED)
            return [pb_utils.InferenceResponse(error=error)]
"""


@pytest.mark.parametrize("id", ["request", "sender"])
def test_a_model_learns_of_a_cancelled_request_while_it_executes(tmp_path: Path, id: str) -> None:
    with running_instance(tmp_path, UNTIL_CANCELLED) as instance:
        instance.initialize({"OUT": "INT32"})
        instance.start_execution(request(3, id=id))
        instance.peer.send({"type": "cancel", "n": 4})
        instance.peer.send({"type": "cancel", "n": 3})
        executed = instance.peer.receive("executed")
        assert executed["responses"][0]["error"] == ["CANCELLED", "cancelled"]


ASYNC = """
    import asyncio
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        async def execute(self, requests):
            if requests[0].request_id() == "fail":
                await asyncio.sleep(0)
                raise ValueError("later")
            await asyncio.gather(*[asyncio.sleep(0.001) for _ in requests])
            if requests[0].request_id() == "decoupled":
                for request in requests:
                    sender = request.get_response_sender()
                    sender.send(pb_utils.InferenceResponse(), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                return None
            return [pb_utils.InferenceResponse() for _ in requests]
"""


def test_execute_may_be_a_coroutine(tmp_path: Path) -> None:
    with running_instance(tmp_path, ASYNC) as instance:
        instance.initialize({"OUT": "INT32"})
        assert len(instance.execute(request(1), request(2))["responses"]) == 2
        assert instance.execute(request(3, id="fail"))["error"].startswith("ValueError: later\n\nAt:\n")
        assert instance.finalize() == 0


def test_a_decoupled_coroutine_goes_on_in_the_background(tmp_path: Path) -> None:
    with running_instance(tmp_path, ASYNC) as instance:
        instance.initialize({"OUT": "INT32"}, is_decoupled=True)
        assert instance.execute(request(1, id="decoupled"), request(2))["error"] is None
        assert [instance.peer.receive("response")["n"] for _ in range(2)] == [1, 2]
        instance.execute(request(3, id="fail"))
        log = instance.peer.receive("log")
        assert log["level"] == "error"
        assert "ValueError: later" in log["text"]
        ended = instance.peer.receive("response")
        assert (ended["n"], ended["response"], ended["final"]) == (3, None, True)
