"""What is refused in a configuration, with the texts that clients of Triton search for."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream.router.model_repository.backend_directory import BackendDirectory
from slipstream.router.model_repository.model_repository import ModelRepository
from slipstream.router.model_repository.read_options import ReadOptions
from slipstream.router.model_repository.repository_check import check_repository
from slipstream.router.model_repository.repository_error import LoadError, RepositoryError, load_failure
from slipstream.router.tensors.infer_error import InferErrorCode
from tests.support.router.model_folders import TENSORS, write_model

PYTHON = f'backend: "python" max_batch_size: 8 {TENSORS}'
STEP = 'step { model_name: "X" input_map { key: "I" value: "A" } output_map { key: "O" value: "B" } }'
SEQUENCE = "sequence_batching { control_input { name: %r control { kind: CONTROL_SEQUENCE_%s } } }"


PIECES = [
    "",
    "{",
    "}",
    "[",
    '"',
    "\\777",
    "\0",
    "-1",
    "9" * 20,
    "1e309",
    "TYPE_INVALID",
    "kind: 77",
    "é",
    "#",
    "dims: 0",
]


def ensemble(steps: str = STEP, more: str = "") -> str:
    return f'platform: "ensemble" {TENSORS} ensemble_scheduling {{ {steps} }} {more}'


def control(*controls: str) -> str:
    inputs = "".join(
        f'control_input {{ name: "{c.split()[0]}" control {{ {c.partition(" ")[2]} }} }}' for c in controls
    )
    return f"{PYTHON} sequence_batching {{ {inputs} }}"


def batching(text: str) -> str:
    return f"{PYTHON} dynamic_batching {{ {text} }}"


AT_READING = [
    (
        'name: "other" ' + PYTHON,
        "unexpected directory name 'M' for model 'other', directory name must equal model name",
    ),
    (f'platform: "python" {TENSORS}', "unexpected platform type 'python' for M"),
    (
        f'backend: "onnxruntime" platform: "tensorrt_plan" {TENSORS}',
        "unexpected 'platform' and 'backend' pair, got:tensorrt_plan, onnxruntime",
    ),
    (
        f'platform: "ensemble" backend: "python" {TENSORS}',
        "Ensemble model 'M' must have platform type 'ensemble' and empty backend type",
    ),
    ('backend: "python" max_batch_size: -1', "'max_batch_size' must be non-negative value for M"),
    (
        f'{PYTHON} model_repository_agents {{ agents {{ name: "checksum" }} }}',
        "unable to find 'libtritonrepoagent_checksum.so' for repo agent 'checksum'",
    ),
    (batching("preferred_batch_size: [0]"), "dynamic batching preferred size must be positive for M"),
    (batching("preferred_batch_size: [4, 9]"), "dynamic batching preferred size must be <= max batch size for M"),
    (batching("priority_levels: 3"), "default priority level must be in range [1, 3] for M"),
    (
        batching("priority_levels: 3 default_priority_level: 1 priority_queue_policy { key: 4 value {} }"),
        "priority queue policy must have priority level in range [1, 3] for M",
    ),
    (
        batching("priority_levels: 2 default_priority_level: 1 preserve_ordering: true"),
        "Only one priority level is allowed when 'preserve_ordering' is true for M",
    ),
    (
        batching(
            "preserve_ordering: true default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1 }"
        ),
        "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for M",
    ),
    (
        f"{PYTHON} model_transaction_policy {{ decoupled: true }} response_cache {{ enable: true }}",
        "Response Cache does not currently support model M with 'decoupled' transaction policy. Please disable the "
        "response cache.",
    ),
    (
        f"{PYTHON} sequence_batching {{}} response_cache {{ enable: true }}",
        "Response Cache does not currently support model M with sequence batching scheduler. Please disable the "
        "response cache.",
    ),
    (
        control("S kind: CONTROL_SEQUENCE_START"),
        "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
        "CONTROL_SEQUENCE_START for M",
    ),
    (
        control("S kind: CONTROL_SEQUENCE_END int32_false_true: [0, 1] bool_false_true: [false, true]"),
        "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and 'bool_false_true' "
        "for CONTROL_SEQUENCE_END for M",
    ),
    (
        control("S kind: CONTROL_SEQUENCE_READY fp32_false_true: [0]"),
        "sequence batching control 'fp32_false_true' must have exactly 2 entries for CONTROL_SEQUENCE_READY for M",
    ),
    (
        control(*(f"{name} kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1]" for name in "ST")),
        "sequence batching specifies multiple CONTROL_SEQUENCE_START tensors for M",
    ),
    (
        control("S kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1]", "S kind: CONTROL_SEQUENCE_CORRID"),
        "sequence batching control tensor 'S' is specified for multiple control kinds for M",
    ),
    (
        control("C kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32"),
        "unexpected data type for control CONTROL_SEQUENCE_CORRID for M. Allowed data types are TYPE_UINT64, "
        "TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
    ),
    (
        control("C kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_INT64 int32_false_true: [0, 1]"),
        "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
        "CONTROL_SEQUENCE_CORRID for M",
    ),
    (
        f"{PYTHON} sequence_batching {{ oldest {{ preferred_batch_size: 9 }} }}",
        "sequence batching preferred batch size must be <= max batch size for M",
    ),
    (
        f"{PYTHON} sequence_batching {{ direct {{ minimum_slot_utilization: 1.5 }} }}",
        "sequence batching minimum slot utilization must be in range (0.0, 1.0] for M",
    ),
    (
        f"{PYTHON} ensemble_scheduling {{ {STEP} }}",
        "ensemble scheduling cannot be set for model 'M' whose platform is not ensemble",
    ),
    (f'platform: "ensemble" {TENSORS}', "ensemble scheduling must be set for ensemble M whose platform is ensemble"),
    (ensemble(more="instance_group {}"), "instance group should not be specified for ensemble 'M'"),
    (ensemble(more="optimization {}"), "optimization should not be specified for ensemble 'M'"),
    (ensemble(more="model_warmup {}"), "model_warmup can not be specified for ensemble 'M'"),
    (ensemble(""), "must specify 'step' for ensemble 'M'"),
    (ensemble(STEP * 1001), "ensemble 'M' has 1001 steps; there may be 1000"),
    (ensemble("step {}"), "must specify 'model_name' in step 0 of ensemble 'M'"),
    (ensemble(STEP + 'step { model_name: "Y" }'), "must specify 'input_map' in step 1 of ensemble 'M'"),
    (ensemble(STEP + STEP), "ensemble tensor 'B' can appear in an output map only once for ensemble 'M' step 1"),
    (ensemble(STEP.replace('"A"', '"C"')), "ensemble input 'A' for ensemble M' is not used"),
    (ensemble(STEP.replace('"B"', '"C"')), "ensemble output 'B' for ensemble M' is not used"),
    (
        ensemble(STEP.replace("output_map", 'input_map { key: "J" value: "C" } output_map')),
        "output 'B' for ensemble 'M' is not written: at least one of its depending tensors, 'C', is not connected",
    ),
    (
        ensemble(STEP + STEP.replace('"B"', '"C"')),
        "ensemble tensor 'C' is unused in ensemble 'M'",
    ),
]
AFTER_COMPLETION = [
    ("input { data_type: TYPE_FP32 dims: 1 }", "model input must specify 'name' for M"),
    ('input { name: "X" dims: 1 }', "model input 'X' must specify 'data_type' for M"),
    ('output { name: "X" data_type: TYPE_FP32 }', "model output 'X' must specify 'dims' for M"),
    (
        'input { name: "X" data_type: TYPE_FP32 dims: 0 }',
        "model input 'X' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for M",
    ),
    (
        'input { name: "X" data_type: TYPE_FP32 dims: 1 reshape {} }',
        "model input 'X' cannot have empty reshape for non-batching model as scalar tensors are not supported for M",
    ),
    (
        'input { name: "X" data_type: TYPE_FP32 dims: [2, 3] reshape { shape: [5] } }',
        "model input 'X' has different size for dims and reshape for M",
    ),
    (
        'input { name: "X" data_type: TYPE_FP32 dims: [2, -1] reshape { shape: [3, -1] } }',
        "model input 'X' has different size for dims and reshape for M",
    ),
    (
        'output { name: "X" data_type: TYPE_FP32 dims: [-1] reshape { shape: [-1, -1] } }',
        "model output 'X' has different number of variable-size dimensions for dims and reshape for M",
    ),
    (
        'input { name: "X" data_type: TYPE_FP32 dims: 1 format: FORMAT_NCHW }',
        "model input NHWC/NCHW require 3 dims for M",
    ),
    (
        'input { name: "X" data_type: TYPE_FP32 dims: 1 is_shape_tensor: true }',
        "shape tensors are only supported for TensorRT platform for M",
    ),
    (
        'batch_input { kind: BATCH_ELEMENT_COUNT data_type: TYPE_FP32 source_input: "Y" }',
        "unknown source input name 'Y' for M",
    ),
    (
        "batch_input { kind: BATCH_ELEMENT_COUNT data_type: TYPE_FP32 }",
        "batch input kind 'BATCH_ELEMENT_COUNT' expects 1 source input, got 0 for M",
    ),
    ("instance_group { kind: KIND_GPU }", "instance group M_0 of model M has kind KIND_GPU but no GPUs are available"),
    (
        "instance_group { kind: KIND_CPU gpus: 0 }",
        "instance group M_0 of model M has kind KIND_CPU but specifies one or more GPUs",
    ),
]


@pytest.mark.parametrize(("config", "text"), AT_READING, ids=[text[:60] for _, text in AT_READING])
def test_a_configuration_is_refused_when_it_is_read(tmp_path: Path, config: str, text: str) -> None:
    write_model(tmp_path, "M", config)
    with pytest.raises(RepositoryError) as raised:
        ModelRepository([tmp_path]).read("M")
    assert raised.value.cause == text
    error = raised.value.as_infer_error("M")
    assert error.message == "failed to load 'M', failed to poll from model repository"
    assert error.code is InferErrorCode.INTERNAL


@pytest.mark.parametrize(("config", "text"), AFTER_COMPLETION)
def test_tensors_and_instances_are_refused_after_the_model_may_have_completed_them(
    tmp_path: Path, config: str, text: str
) -> None:
    write_model(tmp_path, "M", f'backend: "python" {config}')
    draft = ModelRepository([tmp_path]).read("M")
    with pytest.raises(LoadError) as raised:
        draft.complete("1")
    assert raised.value.cause == f"Invalid argument: {text}"


def test_without_completion_tensors_are_refused_at_reading(tmp_path: Path) -> None:
    write_model(tmp_path, "M", 'backend: "python" input { name: "X" dims: 1 }')
    with pytest.raises(RepositoryError, match="model input 'X' must specify 'data_type' for M"):
        ModelRepository([tmp_path], ReadOptions(auto_complete=False)).read("M")


def test_a_load_that_fails_names_each_version_with_its_cause() -> None:
    error = load_failure("M", {"1": "Internal: no", "2": "Invalid argument: bad"})
    assert error.code is InferErrorCode.INVALID_ARG
    assert error.message == (
        "load failed for model 'M': version 1 is at UNAVAILABLE state: Internal: no;"
        "version 2 is at UNAVAILABLE state: Invalid argument: bad;\n"
    )
    assert load_failure("M", {"": "no version"}).message == "load failed for model 'M': no version\n"


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ('backend: "python"\nbogus: 3', 'line 2: Message type "inference.ModelConfig" has no field named "bogus"'),
        ("dynamic_batching {\n priority_queue {}\n}", r"line 2: .*: write priority_levels, default_priority_level"),
        ('parameters {\n key: "a"\n value: "x"\n}', r'line 3: .*: write value: \{ string_value: "..." \}'),
        ("max_batch_size: 1\nmax_batch_size: 2", 'line 2: .* should not have multiple "max_batch_size" fields'),
        ("dynamic_batching {}\nsequence_batching {}", "line 2: .*another member of oneof"),
        ("input { name: ", "line"),
        ("max_batch_size: 99999999999999999999", "99999999999999999999"),
        ('input { name: "X" data_type: 99 }', r"inference\.DataType has no value 99"),
        ("sequence_batching { control_input { control { kind: 9 } } }", "has no value 9"),
    ],
)
def test_a_mistake_in_the_text_is_named_with_its_line_and_what_to_write(tmp_path: Path, config: str, text: str) -> None:
    write_model(tmp_path, "M", config)
    with pytest.raises(RepositoryError, match=text):
        ModelRepository([tmp_path]).read("M")


def test_a_backend_that_is_not_served_fails_the_load_as_in_triton(tmp_path: Path) -> None:
    write_model(tmp_path, "M", f'backend: "tensorrt" {TENSORS}', file="model.plan")
    draft = ModelRepository([tmp_path]).read("M")
    with pytest.raises(LoadError) as raised:
        draft.complete("1")
    assert raised.value.cause.startswith(
        "Invalid argument: unable to find backend library for backend 'tensorrt', try specifying runtime on the "
        "model configuration. Here: a plan is made for one GPU and one version of TensorRT: export the model to ONNX"
    )
    write_model(tmp_path, "B", f'{PYTHON} parameters {{ key: "TRITON_BATCH_STRATEGY_PATH" value {{}} }}')
    with pytest.raises(LoadError, match="Unsupported: model 'B': libraries that form batches are not served"):
        ModelRepository([tmp_path]).read("B").complete("1")
    write_model(tmp_path, "E", ensemble().replace("'M'", "'E'"))
    with pytest.raises(LoadError, match="Unsupported: ensemble 'E': ensembles are not served"):
        ModelRepository([tmp_path]).read("E").complete("1")


@pytest.mark.parametrize(
    ("initial", "text"),
    [
        ('name: "s" data_type: TYPE_FP32 dims: 2 zero_data: true', "'initial_state' field of state 'i' does not match"),
        (
            "data_type: TYPE_INT32 dims: 2 zero_data: true",
            "Field 'name' must be set when using initial_state",
        ),
        (
            'name: "s" data_type: TYPE_INT32 dims: [ 2, 1 ] zero_data: true',
            r"Number of dimensions in 'initial_state' doesn't match .* for state input 'i'\. 2 != 1",
        ),
        (
            'name: "s" data_type: TYPE_INT32 dims: -1 zero_data: true',
            "'initial_state' field for state input name 'i' contains variable dimensions",
        ),
        (
            'name: "s" data_type: TYPE_INT32 dims: 3 zero_data: true',
            r"'initial_state' dim for input name 'i' doesn't match 'state' dim description\. 3 != 2",
        ),
        ('name: "s" data_type: TYPE_INT32 dims: 2', "initial_state setting expects state'i' to have state_data set"),
        (
            'name: "s" data_type: TYPE_INT32 dims: 2 data_file: "short"',
            "initial_state setting expects 8 bytes, but the data provided from shortonly has 4 bytes",
        ),
        (
            'name: "s" data_type: TYPE_INT32 dims: 2 zero_data: true } initial_state { name: "t"',
            r"initial_state field for state input 'i' must contain exactly one or zero element\. Found '2' elements",
        ),
    ],
)
def test_a_wrong_initial_state_is_refused_as_in_triton(tmp_path: Path, initial: str, text: str) -> None:
    state = f'state {{ input_name: "i" output_name: "o" data_type: TYPE_INT32 dims: 2 initial_state {{ {initial} }} }}'
    write_model(tmp_path, "M", f"{PYTHON} sequence_batching {{ {state} }}")
    (tmp_path / "M" / "initial_state").mkdir()
    (tmp_path / "M" / "initial_state" / "short").write_bytes(bytes(4))
    with pytest.raises(LoadError, match=f"Invalid argument: .*{text}"):
        ModelRepository([tmp_path]).read("M").complete("1")


@pytest.mark.parametrize(
    ("backend", "remedy"),
    [
        ("tensorflow", "TensorFlow is not among the backends: export the model to ONNX .* with tf2onnx"),
        ("dali", "DALI pipelines are not served: write the model in Python"),
        (
            "fastertransformer",
            "FasterTransformer is not served: serve the checkpoint that the engine was made from with backend 'vllm'",
        ),
        ("identity", "it is a backend of Triton's tests: write it as a Python model"),
        ("repeat", "it is a backend of Triton's tests"),
        ("own", "a backend that is not Slipstream's needs the folder repository.backend_directory"),
    ],
)
def test_a_backend_that_is_not_here_is_refused_with_what_to_do_instead(
    tmp_path: Path, backend: str, remedy: str
) -> None:
    write_model(tmp_path, "M", f'backend: "{backend}" {TENSORS}')
    text = f"unable to find backend library for backend '{backend}', .* model configuration. Here: {remedy}"
    with pytest.raises(LoadError, match=text):
        ModelRepository([tmp_path]).read("M").complete("1")


def test_a_backend_of_the_directory_is_served_unless_models_bring_its_code_along(tmp_path: Path) -> None:
    for name in ("own", "python", "vllm"):
        (tmp_path / "backends" / name).mkdir(parents=True)
        (tmp_path / "backends" / name / "model.py").touch()
    directory = BackendDirectory(tmp_path / "backends")
    assert directory.file_of("own") == tmp_path / "backends" / "own" / "model.py"
    (tmp_path / "backends" / "own" / "backend.py").touch()
    assert directory.file_of("own") == tmp_path / "backends" / "own" / "backend.py"
    assert [directory.file_of(name) for name in ("python", "vllm", "other", "", "..", "../backends/own")] == [None] * 6
    write_model(tmp_path / "models", "M", 'backend: "own"')  # which completes its inputs and outputs
    draft = ModelRepository([tmp_path / "models"], ReadOptions(backend_directory=directory)).read("M")
    assert draft.config_to_complete()["backend"] == "own"
    assert draft.backend_file == str(tmp_path / "backends" / "own" / "backend.py")
    assert check_repository([tmp_path / "models"], ReadOptions(backend_directory=directory)) == []
    write_model(tmp_path / "models", "N", 'backend: "other"')
    with pytest.raises(LoadError, match=r"Here: there is neither backend\.py nor model\.py in .*/backends/other"):
        ModelRepository([tmp_path / "models"], ReadOptions(backend_directory=directory)).read("N").complete("1")


@pytest.mark.filterwarnings("ignore:.*escape sequence:DeprecationWarning")  # of protobuf's reader of strings
@given(edits=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 30), st.sampled_from(PIECES)), max_size=3))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_stands_in_a_configuration_it_is_read_or_refused(
    tmp_path: Path, edits: list[tuple[int, int, str]]
) -> None:
    text = f"{PYTHON} {control('S kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1]')[len(PYTHON) :]}"
    for begin, length, piece in edits:
        text = text[:begin] + piece + text[begin + length :]
    (tmp_path / "M" / "1").mkdir(parents=True, exist_ok=True)
    (tmp_path / "M" / "config.pbtxt").write_text(text)
    repository = ModelRepository([tmp_path])
    with suppress(RepositoryError, LoadError):
        draft = repository.read("M")
        draft.complete("1", draft.config_to_complete())
    check_repository([tmp_path], repository.options)
