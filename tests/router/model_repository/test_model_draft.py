"""What a complete configuration is, for the router, for the model and for clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipstream.router.model_repository.config.config_json import to_dict
from slipstream.router.model_repository.config.config_text import from_dict, parse_text
from slipstream.router.model_repository.model_draft import ModelDraft
from slipstream.router.model_repository.model_repository import ModelRepository
from slipstream.router.model_repository.read_options import ReadOptions
from slipstream.router.model_repository.repository_error import LoadError
from slipstream.router.tensors.model_spec import (
    DynamicBatching,
    ImplicitStateSpec,
    InitialState,
    InstanceGroup,
    ModelSpec,
    QueuePolicy,
    RateResource,
    SequenceBatching,
    SequenceControl,
    TensorSpec,
    WarmupInput,
    WarmupSample,
)
from tests.support.router.model_folders import PYTHON, TENSORS, write_model


def draft_of(repository: Path, config: str | None, options: ReadOptions | None = None) -> ModelDraft:
    write_model(repository, "M", config)
    return ModelRepository([repository], options or ReadOptions()).read("M")


def spec_of(repository: Path, config: str) -> ModelSpec:
    return draft_of(repository, config).complete("1")


def test_a_small_configuration_gets_all_defaults_in_its_json(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, f'max_batch_size: 8 {TENSORS} dynamic_batching {{}} parameters {{ key: "k" value {{ }} }}')
    assert json.loads(spec.config_json) == {
        "name": "M",
        "platform": "",
        "backend": "python",
        "runtime": "",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": 8,
        "input": [
            {
                "name": "A",
                "data_type": "TYPE_FP32",
                "format": "FORMAT_NONE",
                "dims": [4],
                "is_shape_tensor": False,
                "allow_ragged_batch": False,
                "optional": False,
                "is_non_linear_format_io": False,
            }
        ],
        "output": [
            {
                "name": "B",
                "data_type": "TYPE_FP32",
                "dims": [-1],
                "label_filename": "",
                "is_shape_tensor": False,
                "is_non_linear_format_io": False,
            }
        ],
        "batch_input": [],
        "batch_output": [],
        "optimization": {
            "priority": "PRIORITY_DEFAULT",
            "input_pinned_memory": {"enable": True},
            "output_pinned_memory": {"enable": True},
            "gather_kernel_buffer_threshold": 0,
            "eager_batching": False,
        },
        "dynamic_batching": {
            "preferred_batch_size": [8],
            "max_queue_delay_microseconds": 0,
            "preserve_ordering": False,
            "priority_levels": 0,
            "default_priority_level": 0,
            "priority_queue_policy": {},
        },
        "instance_group": [
            {
                "name": "M",
                "kind": "KIND_CPU",
                "count": 1,
                "gpus": [],
                "secondary_devices": [],
                "profile": [],
                "passive": False,
                "host_policy": "",
            }
        ],
        "default_model_filename": "model.py",
        "cc_model_filenames": {},
        "metric_tags": {},
        "parameters": {"k": {"string_value": ""}},
        "model_warmup": [],
    }


def test_the_spec_has_what_the_router_needs(tmp_path: Path) -> None:
    (tmp_path / "M").mkdir()
    (tmp_path / "M" / "labels.txt").write_text("cat\ndog\n")
    spec = spec_of(
        tmp_path,
        """
        backend: "python" max_batch_size: 8
        input [ { name: "A" data_type: TYPE_STRING dims: [ 1 ] reshape: { shape: [ ] } optional: true },
                { name: "R" data_type: TYPE_BF16 dims: [ -1 ] allow_ragged_batch: 1 } ]
        output { name: "B" data_type: TYPE_FP32 dims: [ 2 ] label_filename: "labels.txt" }
        model_transaction_policy { decoupled: True }
        response_cache { enable: false }
        instance_group [ { count: 2 kind: KIND_CPU
                           rate_limiter { resources { name: "r" global: true count: 3 } priority: 2 } },
                         { name: "own" kind: KIND_MODEL passive: true } ]
        parameters { key: "a" value: { string_value: "1" } }
        parameters { key: "a" value: { string_value: "2" } }  # the last one counts
        model_warmup { name: "w" batch_size: 2
                       inputs { key: "A" value { data_type: TYPE_STRING dims: 1 input_data_file: "a" } } }
        """,
    )
    assert spec == ModelSpec(
        name="M",
        version="1",
        folder=tmp_path / "M",
        backend="python",
        platform="python",
        max_batch_size=8,
        inputs=(
            TensorSpec("A", "BYTES", (1,), reshape=(), is_optional=True),
            TensorSpec("R", "BF16", (-1,), is_ragged=True),
        ),
        outputs=(TensorSpec("B", "FP32", (2,), labels=("cat", "dog")),),
        config_json=spec.config_json,
        versions=("1",),
        model_file="model.py",
        is_decoupled=True,
        instance_groups=(
            InstanceGroup("M_0", 2, "KIND_CPU", (), (RateResource("r", 3, is_global=True),), rate_priority=2),
            InstanceGroup("own", 1, "KIND_MODEL", is_passive=True),
        ),
        warmup=(WarmupSample("w", 2, 1, (WarmupInput("A", "BYTES", (1,), "file", "a"),)),),
        parameters={"a": "2"},
    )


def test_the_dynamic_batcher_has_its_policies(tmp_path: Path) -> None:
    config = """
    dynamic_batching {
      preferred_batch_size: [ 8, 4 ] max_queue_delay_microseconds: 5000 priority_levels: 3 default_priority_level: 2
      default_queue_policy { allow_timeout_override: true default_timeout_microseconds: 30000000 max_queue_size: 4 }
      priority_queue_policy { key: 1 value { timeout_action: DELAY default_timeout_microseconds: 5 } }
    }
    """
    assert spec_of(tmp_path, f"{PYTHON} max_batch_size: 8 {config}").dynamic_batching == DynamicBatching(
        preferred_batch_sizes=(4, 8),
        max_queue_delay_us=5000,
        priority_levels=3,
        default_priority_level=2,
        default_queue_policy=QueuePolicy(4, 30_000_000, "REJECT", allow_timeout_override=True),
        priority_queue_policies={1: QueuePolicy(0, 5, "DELAY")},
    )


def test_the_sequence_batcher_has_its_controls_and_states(tmp_path: Path) -> None:
    (tmp_path / "M" / "initial_state").mkdir(parents=True)
    (tmp_path / "M" / "initial_state" / "begin").write_bytes(b"\x01\x02\x03\x04")
    config = """
    sequence_batching {
      oldest { max_candidate_sequences: 4 max_queue_delay_microseconds: 7 preserve_ordering: true }
      control_input { name: "S" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 2 ] } }
      control_input { name: "C" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } }
      state { input_name: "i" output_name: "o" data_type: TYPE_INT32 dims: [ -1 ]
              initial_state { data_type: TYPE_INT32 dims: 1 data_file: "begin" name: "s" } }
    }
    """
    assert spec_of(tmp_path, f"{PYTHON} max_batch_size: 8 {config}").sequence_batching == SequenceBatching(
        strategy="oldest",
        max_idle_us=1_000_000,
        controls=(SequenceControl("S", "START", "FP32", (0, 2)), SequenceControl("C", "CORRID", "BYTES")),
        states=(ImplicitStateSpec("i", "o", "INT32", (-1,), InitialState("INT32", (1,), b"\x01\x02\x03\x04")),),
        max_queue_delay_us=7,
        max_candidate_sequences=4,
        preferred_batch_sizes=(8,),
        preserve_ordering=True,
    )


def test_instances_of_a_backend_without_gpus_go_to_cpus(tmp_path: Path) -> None:
    write_model(tmp_path, "M", f'backend: "fil" {TENSORS}')
    (group,) = ModelRepository([tmp_path], ReadOptions(devices=(0, 1))).read("M").instance_groups
    assert (group.count, group.kind, group.devices) == (1, "KIND_CPU", ())


def test_instances_go_to_the_gpus_that_are_there(tmp_path: Path) -> None:
    def groups(name: str, text: str, *devices: int) -> list[tuple[str, int, str, tuple[int, ...]]]:
        write_model(tmp_path, name, f"{PYTHON} {text}")
        draft = ModelRepository([tmp_path], ReadOptions(devices=devices)).read(name)
        return [(group.name, group.count, group.kind, group.devices) for group in draft.instance_groups]

    assert groups("a", "", 0, 1) == [("a", 1, "KIND_GPU", (0, 1))]
    assert groups("b", "instance_group { gpus: 1 }", 0, 1) == [("b_0", 1, "KIND_GPU", (1,))]
    with pytest.raises(LoadError, match="has kind KIND_CPU but specifies one or more GPUs"):
        groups("c", "instance_group { gpus: 1 }", 0)
    with pytest.raises(
        LoadError,
        match=r"specifies invalid or unsupported gpu id 3.* compatibility are: 0, 1",
    ):
        groups("d", "instance_group { kind: KIND_GPU gpus: [ 0, 3 ] }", 0, 1)


def test_a_model_completes_batch_size_tensors_scheduler_and_decoupled(tmp_path: Path) -> None:
    draft = draft_of(tmp_path, None)
    assert draft.is_completed_by_model
    assert (draft.backend, draft.model_file) == ("python", "model.py")
    config = draft.config_to_complete()
    config["max_batch_size"] = 16
    config["input"].append({"name": "A", "data_type": "TYPE_FP32", "dims": [4], "optional": True})
    config["output"].append({"name": "B", "data_type": "TYPE_STRING", "dims": [-1]})
    config["dynamic_batching"] = {}
    config["model_transaction_policy"] = {"decoupled": True}
    config["parameters"] = {"not": {"string_value": "taken"}}
    spec = draft.complete("1", config)
    assert spec.max_batch_size == 16
    assert spec.inputs == (TensorSpec("A", "FP32", (4,), is_optional=True),)
    assert spec.outputs == (TensorSpec("B", "BYTES", (-1,)),)
    assert spec.dynamic_batching == DynamicBatching(preferred_batch_sizes=(16,))
    assert spec.is_decoupled
    assert spec.parameters == {}
    assert draft.complete("1").max_batch_size == 0  # the draft itself is as it was


def test_a_model_cannot_exchange_the_scheduler_or_complete_nonsense(tmp_path: Path) -> None:
    draft = draft_of(tmp_path, f"{PYTHON} sequence_batching {{}}")

    def cause(changes: dict[str, Any]) -> str:
        config = {key: value for key, value in draft.config_to_complete().items() if key != "sequence_batching"}
        with pytest.raises(LoadError) as raised:
            draft.complete("1", config | changes)
        return raised.value.cause

    assert cause({"dynamic_batching": {}}).startswith("Internal: Cannot update scheduling choice")
    assert "TYPE_BAD" in cause({"input": [{"name": "A", "data_type": "TYPE_BAD", "dims": [1]}]})
    assert "must specify 'dims'" in cause({"sequence_batching": {}, "input": [{"name": "A", "data_type": "TYPE_FP32"}]})
    assert "max_batch_size" in cause({"sequence_batching": {}, "max_batch_size": -1})


def test_a_configuration_that_is_not_to_be_completed_is_used_as_it_stands(tmp_path: Path) -> None:
    draft = draft_of(tmp_path, PYTHON, ReadOptions(auto_complete=False))
    assert not draft.is_completed_by_model
    assert draft.complete("1").inputs == (TensorSpec("A", "FP32", (4,)),)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ('label_filename: "no.txt"', "Internal: failed to open text file for read"),
        ('label_filename: "../../secret.txt"', "Unsupported: label file path"),
    ],
)
def test_labels_lie_in_the_folder_of_the_model(tmp_path: Path, text: str, cause: str) -> None:
    (tmp_path.parent / "secret.txt").write_text("secret")
    draft = draft_of(tmp_path, f'backend: "python" output {{ name: "B" data_type: TYPE_FP32 dims: 1 {text} }}')
    with pytest.raises(LoadError, match=cause):
        draft.complete("1")


@given(
    dims=st.lists(st.integers(-(2**63), 2**63 - 1)),
    sizes=st.lists(st.integers(-(2**31), 2**31 - 1)),
    delay=st.integers(0, 2**64 - 1),
    value=st.text(),
)
@settings(max_examples=50, deadline=None)
def test_the_json_of_a_configuration_is_the_same_configuration(
    dims: list[int], sizes: list[int], delay: int, value: str
) -> None:
    config = parse_text(PYTHON)
    config.input[0].dims.extend(dims)
    config.dynamic_batching.preferred_batch_size.extend(sizes)
    config.dynamic_batching.max_queue_delay_microseconds = delay
    config.dynamic_batching.priority_queue_policy[delay].max_queue_size = 3
    config.parameters["k"].string_value = value
    config.optimization.cuda.graph_spec.add().input["A"].dim.extend(dims)
    plain = to_dict(config)
    assert plain["input"][0]["dims"] == [4, *dims]
    assert plain["optimization"]["cuda"]["graph_spec"][0]["input"]["A"]["dim"] == dims
    assert plain["dynamic_batching"]["max_queue_delay_microseconds"] == delay
    assert from_dict(plain) == config
