"""Tensor parallelism of a general model, by the plan that its own code has for transformers.

The plan says which products are dealt out by rows or columns, which parameters (sinks of attention), and which experts.
Where it leaves attention whole, a rank still attends with its own heads alone (see `flat_attention`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.distributed.configuration_utils import DistributedConfig

from slipstream.workers.models.directory.kv_spec import KvSpec
from slipstream.workers.models.sharding.rank_share import Rank

# Styles by which a dimension is dealt out that has to come out even, and how many parts lie side by side in it.
EVEN_STYLES = {"colwise": (-2, 1), "rowwise": (-1, 1), "packed_colwise": (-2, 2), "packed_rowwise": (-1, 2)}
WHOLE_EXPERTS = "grouped_gemm"  # the style of parameters that are dealt out by experts

# Plans with which several ranks do not compute what one does. The self-check does not see it: all that a rank has to
# compare with is dealt out by the same plan. `scripts/architectures` compares with the whole model.
WRONG_PLANS = {
    **dict.fromkeys(
        ("Gemma3nForCausalLM", "Gemma3nForConditionalGeneration"),
        "its sparse activation looks at all outputs of a product that the plan of transformers deals out",
    ),
    "HrmTextForCausalLM": "with the plan of transformers ranks do not compute what one computes alone",
}


def why_no_tp(model: PreTrainedModel) -> str | None:
    """Why a model cannot be dealt out to several ranks; None: it can. A plan for the vocabulary alone is none."""
    if type(model).__name__ in WRONG_PLANS:
        return WRONG_PLANS[type(model).__name__]
    if any("*" in rule for rule in (*model.tp_plan, *model.ep_plan)):
        return None
    return f"transformers has no tensor-parallel plan for {type(model).__name__}"


def divided_sizes(model: PreTrainedModel, kv: KvSpec) -> tuple[tuple[str, int], ...]:
    """The sizes that a degree must divide, each by a name in config.json or of the parameters that are dealt out."""
    sizes = {("num_key_value_heads", kv.num_units): None}
    for name, parameter in model.named_parameters():
        rule = re.sub(r"\.\d+(?=\.|$)", ".*", name)
        module = rule.rpartition(".")[0]
        if rule in model.ep_plan:
            if model.ep_plan[rule] == WHOLE_EXPERTS:
                sizes[f"experts of {module}", parameter.shape[0]] = None
            continue
        dimension, parts = EVEN_STYLES.get(model.tp_plan.get(rule) or model.tp_plan.get(module, ""), (0, 1))
        if dimension and parameter.ndim >= -dimension:
            sizes[rule, parameter.shape[dimension] // parts] = None
    return tuple(sizes)


def distributed_config(decoder: PreTrainedConfig, tp: Rank) -> DistributedConfig:
    """For `from_pretrained` on one rank of a group that is all of torch's process group; `decoder` is the configuration
    of the text decoder. Experts are dealt out whole where the model has a plan for that, else each of them in parts."""
    has_expert_plan = bool(decoder.base_model_ep_plan)
    return DistributedConfig(tp_size=tp.size, tp_plan="auto", ep_size=tp.size if has_expert_plan else 1)


@contextmanager
def local_device(device: torch.device) -> Iterator[None]:
    """Within it, transformers takes `device` for that of this process: it asks torchrun's variable."""
    index: int | None = device.index  # None on the host
    before = os.environ.get("LOCAL_RANK")
    os.environ["LOCAL_RANK"] = str(index or 0)
    try:
        yield
    finally:
        if before is None:
            del os.environ["LOCAL_RANK"]
        else:
            os.environ["LOCAL_RANK"] = before


def expert_shares(model: nn.Module) -> tuple[int, int]:
    """How many experts of a layer this rank holds whole, and how many a layer has; 0 if none are dealt out whole. All
    layers with experts have as many."""
    for module in model.modules():
        if getattr(module, "_is_expert_parallel", False):
            parameters: Any = [one for one in module.parameters(recurse=False) if isinstance(one, DTensor)]
            return parameters[0].to_local().shape[0], parameters[0].shape[0]
    return 0, 0
