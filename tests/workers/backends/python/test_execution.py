"""An instance executes batches: tensors in and out, errors, and responses by senders."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.support.workers.instance_process import request, running_instance, shared_file

ADD_SUB = """
    import json
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(config):
            config.add_input({"name": "A", "data_type": "TYPE_FP32", "dims": [-1]})
            config.add_output({"name": "SUM", "data_type": "TYPE_FP32", "dims": [-1]})
            config.set_max_batch_size(8)
            config.set_dynamic_batching()
            return config

        def initialize(self, args):
            print("initialised", args["model_name"])

        def execute(self, requests):
            responses = []
            for request in requests:
                a = pb_utils.get_input_tensor_by_name(request, "A").as_numpy()
                b = pb_utils.get_input_tensor_by_name(request, "B").as_numpy()
                outputs = [pb_utils.Tensor("SUM", a + b), pb_utils.Tensor("DIFFERENCE", a - b)]
                responses.append(pb_utils.InferenceResponse(outputs, parameters={"shape": str(a.shape)}))
            return responses

        def finalize(self):
            print("finalised")
"""
"""Its outputs are declared by a test's `initialize`."""


def test_an_instance_lives_from_hello_to_finalize(tmp_path: Path) -> None:
    with running_instance(tmp_path, ADD_SUB) as instance:
        assert instance.hello["state"] == "new"
        assert (instance.hello["launch"], instance.hello["secret"]) == (instance.launch, "secret")
        assert (instance.hello["pid"], instance.hello["memory_id"]) == (instance.process.pid, "memory")
        instance.peer.send(
            {"type": "complete_config", "config": {"name": "model", "max_batch_size": 0, "input": [], "output": []}}
        )
        completed = instance.peer.receive("completed")["config"]
        assert completed["max_batch_size"] == 8
        assert completed["dynamic_batching"] == {}
        assert completed["input"] == [{"name": "A", "data_type": "TYPE_FP32", "dims": [-1]}]
        instance.initialize({"SUM": "FP32", "DIFFERENCE": "FP32"})
        numbers = np.array([[1, 2]], dtype=np.float32)
        tensors = [["A", "FP32", [1, 2], [0, 8]], ["B", "FP32", [1, 2], [8, 8]]]
        executed = instance.execute(
            request(1, tensors), request(2, tensors, outputs=["SUM"]), payload=numbers.tobytes() * 2
        )
        assert executed["error"] is None
        both, one = executed["responses"]
        assert [output[0] for output in both["outputs"]] == ["SUM", "DIFFERENCE"]
        assert [output[0] for output in one["outputs"]] == ["SUM"]
        assert instance.peer.array(both["outputs"][0]).tolist() == [[2, 4]]
        assert instance.peer.array(both["outputs"][1]).tolist() == [[0, 0]]
        assert both["parameters"] == {"shape": "(1, 2)"}
        assert all(executed[name] >= 0 for name in ("input_ns", "compute_ns", "output_ns"))
        assert instance.finalize() == 0
        assert instance.log.read_text().splitlines() == ["initialised model", "finalised"]


def test_large_tensors_travel_in_shared_memory_both_ways(tmp_path: Path) -> None:
    numbers = np.arange(50_000, dtype=np.float32)
    with (
        running_instance(tmp_path, ADD_SUB) as instance,
        shared_file(f"slipstream-{instance.launch}-in", bytes(96) + numbers.tobytes()),
    ):
        instance.initialize({"SUM": "FP32"})
        place = [f"slipstream-{instance.launch}-in", 96, numbers.nbytes]
        tensors = [["A", "FP32", [50_000], place], ["B", "FP32", [50_000], place]]
        places = []
        for n in range(3):
            executed = instance.execute(request(n, tensors))
            output = executed["responses"][0]["outputs"][0]
            np.testing.assert_array_equal(instance.peer.array(output), numbers * 2)
            assert instance.peer.payload == b""
            places.append(tuple(output[3][:2]))
        assert len(set(places)) == 3, "a place in use was given away"
        instance.peer.send({"type": "release", "places": [list(place) for place in places[:2]]})
        executed = instance.execute(request(4, tensors))
        assert tuple(executed["responses"][0]["outputs"][0][3][:2]) in places[:2]
        assert instance.finalize() == 0
        assert not list(Path("/dev/shm").glob(f"slipstream-{instance.launch}-[0-9]*"))


def test_an_output_is_written_into_the_memory_of_the_client(tmp_path: Path) -> None:
    numbers = np.array([1, 2], dtype=np.float32)
    with (
        running_instance(tmp_path, ADD_SUB) as instance,
        shared_file(f"slipstream-{instance.launch}-client", bytes(64)) as memory,
    ):
        instance.initialize({"SUM": "FP32", "DIFFERENCE": "FP32"})
        tensors = [["A", "FP32", [2], [0, 8]], ["B", "FP32", [2], [0, 8]]]
        place = [f"slipstream-{instance.launch}-client", 16, 32]
        too_small = [f"slipstream-{instance.launch}-client", 48, 4]
        wanted = request(1, tensors, into={"SUM": place, "DIFFERENCE": too_small})
        executed = instance.execute(wanted, payload=numbers.tobytes())
        total, difference = executed["responses"][0]["outputs"]
        assert total[3] == [place[0], 16, 8]
        assert np.frombuffer(memory[16:24], dtype=np.float32).tolist() == [2, 4]
        assert difference[3] == [0, 8]
        assert memory[48:52] == bytes(4)


KEEPER = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.kept = []

        def execute(self, requests):
            array = requests[0].inputs()[0].as_numpy()
            self.kept.append(array)
            array[0] += 100  # a model may write to its inputs
            firsts = [int(kept[0]) for kept in self.kept] + [int(kept[-1]) for kept in self.kept]
            import numpy as np
            return [pb_utils.InferenceResponse([pb_utils.Tensor("FIRSTS", np.array(firsts, dtype=np.int32))])]
"""


def test_an_array_that_a_model_keeps_stays_as_it_was_and_writing_to_it_reaches_nobody(tmp_path: Path) -> None:
    num = 400_000
    with (
        running_instance(tmp_path, KEEPER) as instance,
        shared_file(f"slipstream-{instance.launch}-in", np.full(num, 1, dtype=np.int32).tobytes()) as memory,
    ):
        instance.initialize({"FIRSTS": "INT32"})
        tensor = ["A", "INT32", [num], [f"slipstream-{instance.launch}-in", 0, 4 * num]]
        instance.execute(request(1, [tensor]))
        assert memory[:4] == np.int32(1).tobytes()
        memory[:] = np.full(num, 2, dtype=np.int32).tobytes()
        executed = instance.execute(request(2, [tensor]))
        firsts = instance.peer.array(executed["responses"][0]["outputs"][0]).tolist()
        assert firsts == [101, 102, 1, 2]


TEXTS = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            (texts,) = [tensor.as_numpy() for tensor in requests[0].inputs()]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", texts[::-1])])]
"""


def test_large_texts_travel_in_shared_memory(tmp_path: Path) -> None:
    texts = [b"a" * 900_000, b"", b"b" * 900_000]
    data = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    with (
        running_instance(tmp_path, TEXTS) as instance,
        shared_file(f"slipstream-{instance.launch}-in", data) as _,
    ):
        instance.initialize({"OUT": "BYTES"})
        place = [f"slipstream-{instance.launch}-in", 0, len(data)]
        executed = instance.execute(request(1, [["TEXTS", "BYTES", [3], place]]))
        name, datatype, shape, (key, offset, num_bytes) = executed["responses"][0]["outputs"][0]
        assert (name, datatype, shape, num_bytes) == ("OUT", "BYTES", [3], len(data))
        written = Path("/dev/shm", key).read_bytes()[offset : offset + num_bytes]
        assert written == b"".join(len(text).to_bytes(4, "little") + text for text in texts[::-1])


FAILING = """
    import triton_python_backend_utils as pb_utils
    from helper import fail_in_helper

    class TritonPythonModel:
        def execute(self, requests):
            what = requests[0].request_id()
            if what == "value":
                raise ValueError("no such value")
            if what == "helper":
                fail_in_helper()
            if what == "none":
                return []
            if what == "tuple":
                return (None,)
            if what == "wrong":
                return [1]
            if what == "exit":
                raise SystemExit(3)
            if what == "empty":
                raise ValueError
            if what == "api":
                pb_utils.Tensor("", None)
            if what == "no unicode":
                raise ValueError(b"a\\xffb".decode("utf-8", "surrogateescape"))
            error = pb_utils.TritonError("not this one", pb_utils.TritonError.NOT_FOUND)
            return [pb_utils.InferenceResponse(error=error)]
"""


def test_failures_have_the_texts_that_clients_know(tmp_path: Path) -> None:
    (tmp_path / "model" / "1").mkdir(parents=True)
    (tmp_path / "model" / "1" / "helper.py").write_text("def fail_in_helper():\n    raise KeyError('k')\n")
    (tmp_path / "model" / "1").rename(tmp_path / "helpers")
    (tmp_path / "model").rmdir()
    with running_instance(tmp_path, FAILING, {"PYTHONPATH": str(tmp_path / "helpers")}) as instance:
        instance.initialize({"OUT": "FP32"})
        file = instance.version_folder / "model.py"
        texts = {
            what: instance.execute(request(1, id=what))["error"]
            for what in ("value", "helper", "none", "tuple", "wrong", "exit", "empty", "api", "no unicode")
        }
        assert texts["value"] == f"ValueError: no such value\n\nAt:\n  {file}(9): execute\n"
        helper = tmp_path / "helpers" / "helper.py"
        assert texts["helper"] == f"KeyError: 'k'\n\nAt:\n  {helper}(2): fail_in_helper\n  {file}(11): execute\n"
        assert texts["none"] == (
            "Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0\n"
        )
        assert texts["tuple"] == "Expected a list in the execute return, found type '<class 'tuple'>'."
        assert texts["wrong"] == (
            "Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'int'>'."
        )
        assert texts["exit"].startswith("SystemExit: 3")
        assert texts["empty"].startswith("ValueError: <EMPTY MESSAGE>")
        assert texts["api"].startswith("TypeError: ")
        assert texts["no unicode"].startswith("ValueError: a?b")
        response = instance.execute(request(2))["responses"][0]
        assert response == {"outputs": [], "error": ["NOT_FOUND", "not this one"], "parameters": None}


def test_a_model_that_cannot_be_loaded_says_why_and_ends(tmp_path: Path) -> None:
    with running_instance(tmp_path, "import no_such_module\n") as instance:
        instance.peer.send({"type": "complete_config", "config": {"name": "model"}})
        error = instance.peer.receive("failed")["error"]
        assert error.startswith("ModuleNotFoundError: No module named 'no_such_module'\n\nAt:\n")
        assert f"  {instance.version_folder / 'model.py'}(1): <module>\n" in error
        assert error.endswith("): _find_and_load\n")
        assert instance.process.wait(20) == 1


def test_a_syntax_error_has_no_traceback(tmp_path: Path) -> None:
    with running_instance(tmp_path, "def f(:\n") as instance:
        instance.peer.send({"type": "complete_config", "config": {"name": "model"}})
        assert instance.peer.receive("failed")["error"] == "SyntaxError: invalid syntax (model.py, line 1)"


def test_a_model_without_the_class_has_triton_s_text(tmp_path: Path) -> None:
    with running_instance(tmp_path, "x = 1\n") as instance:
        instance.peer.send({"type": "complete_config", "config": {"name": "model"}})
        error = instance.peer.receive("failed")["error"]
        assert error.startswith("AttributeError: module '1.model' has no attribute 'TritonPythonModel'")


def test_a_place_without_a_request_is_executed_and_not_answered(tmp_path: Path) -> None:
    with running_instance(tmp_path, ADD_SUB) as instance:
        instance.initialize({"SUM": "FP32"})
        tensors = [["A", "FP32", [1], [0, 4]], ["B", "FP32", [1], [0, 4]]]
        payload = np.float32(2).tobytes()
        executed = instance.execute(request(1, tensors, is_null=True), request(2, tensors), payload=payload)
        nothing, response = executed["responses"]
        assert nothing is None
        assert instance.peer.array(response["outputs"][0]).tolist() == [4]
