"""What is said to an instance at its start."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.router.infer.lives.instance_plan import PlannedInstance
from slipstream.router.instances.launches import new_launch_id
from slipstream.router.instances.messages import InitializeInstance, StartInstance
from slipstream.router.model_repository.model_draft import ModelDraft
from slipstream.router.tensors.model_spec import ModelSpec


def start_of(draft: ModelDraft, version: str, planned: PlannedInstance, settings: Mapping[str, str]) -> StartInstance:
    return StartInstance(
        launch=new_launch_id(),
        name=planned.name,
        model=draft.name,
        version=version,
        backend=draft.backend,
        folder=str(draft.folder),
        version_folder=str(draft.folder / version),
        model_file=draft.model_file,
        parameters=draft.parameters,
        kind=planned.kind,
        device=planned.device,
        revision=draft.revision_of(version),
        settings=settings,
        backend_file=draft.backend_file,
    )


def initialize_of(spec: ModelSpec, version: str, planned: PlannedInstance) -> InitializeInstance:
    args = {
        "model_config": spec.config_json.decode(),
        "model_instance_kind": planned.kind_name,
        "model_instance_device_id": str(planned.device),
        "model_instance_name": planned.name,
        "model_repository": str(spec.folder),
        "model_version": version,
        "model_name": spec.name,
    }
    outputs = {tensor.name: tensor.datatype for tensor in spec.outputs}
    if spec.sequence_batching is not None:
        outputs.update({state.output_name: state.datatype for state in spec.sequence_batching.states})
    return InitializeInstance(args, outputs, spec.is_decoupled)
