"""A model's configuration while the model completes it."""

from __future__ import annotations

import json
from typing import Any

INPUT_PROPERTIES = ("name", "data_type", "dims", "optional")
OUTPUT_PROPERTIES = ("name", "data_type", "dims")
LISTED = {
    INPUT_PROPERTIES: "'name', 'data_type', 'dims' and 'optional'",
    OUTPUT_PROPERTIES: "'name', 'data_type' and 'dims'",
}


class ModelConfig:
    """What `auto_complete_config` gets and returns. What the configuration says already may not be changed, only
    completed; all methods raise ValueError otherwise."""

    def __init__(self, model_config: str) -> None:
        self._model_config: dict[str, Any] = json.loads(model_config)

    def as_dict(self) -> dict[str, Any]:
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        configured = self._model_config.get("max_batch_size", 0)
        if configured > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {configured}, but in auto-complete-config function for model "
                f"'{self._name}' specified max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        for scheduler in ("sequence_batching", "ensemble_scheduling"):
            if scheduler in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{scheduler}', but auto-complete-config function "
                    f"for model '{self._name}' tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, transaction_policy_dict: dict[str, Any]) -> None:
        for name in transaction_policy_dict:
            if name != "decoupled":
                raise ValueError(
                    f"model transaction property in auto-complete-config function for model '{self._name}' contains "
                    "property other than 'decoupled'."
                )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" not in transaction_policy_dict:
            return
        wanted = transaction_policy_dict["decoupled"]
        if policy.get("decoupled", wanted) != wanted:
            raise ValueError(
                f"trying to change decoupled property in auto-complete-config for model '{self._name}', which is "
                f"already set to '{policy['decoupled']}'."
            )
        policy["decoupled"] = wanted

    def add_input(self, input: dict[str, Any]) -> None:
        self._add("input", input, INPUT_PROPERTIES)

    def add_output(self, output: dict[str, Any]) -> None:
        self._add("output", output, OUTPUT_PROPERTIES)

    @property
    def _name(self) -> str:
        return str(self._model_config.get("name", ""))

    def _add(self, kind: str, tensor: dict[str, Any], properties: tuple[str, ...]) -> None:
        self._check_properties(kind, tensor, properties)
        tensors = self._model_config.setdefault(kind, [])
        for configured in tensors:
            if configured["name"] == tensor["name"]:
                self._merge(kind, configured, tensor)
                return
        tensors.append(tensor)

    def _check_properties(self, kind: str, tensor: dict[str, Any], properties: tuple[str, ...]) -> None:
        where = f"in auto-complete-config function for model '{self._name}'"
        if any(name not in properties for name in tensor):
            raise ValueError(
                f"{kind} '{tensor.get('name', '')}' {where} contains property other than {LISTED[properties]}."
            )
        if "name" not in tensor:
            raise ValueError(f"{kind} {where} is missing 'name' property.")
        for name in ("data_type", "dims"):
            if name not in tensor:
                raise ValueError(f"{kind} '{tensor['name']}' {where} is missing '{name}' property.")

    def _merge(self, kind: str, configured: dict[str, Any], tensor: dict[str, Any]) -> None:
        name = tensor["name"]
        datatype = configured.get("data_type", "TYPE_INVALID")
        if datatype not in ("TYPE_INVALID", tensor["data_type"]):
            raise ValueError(
                f"unable to load model '{self._name}', configuration expects datatype {datatype} for {kind} '{name}', "
                f"model provides {tensor['data_type']}"
            )
        where = f"model '{self._name}', tensor '{name}': the model expects"
        if configured.get("dims") and configured["dims"] != tensor["dims"]:
            raise ValueError(
                f"{where} dims {tensor['dims']} but the model configuration specifies dims {configured['dims']}"
            )
        is_optional = tensor.get("optional", configured.get("optional"))
        if configured.get("optional", is_optional) != is_optional:
            raise ValueError(
                f"{where} optional {is_optional} but the model configuration specifies optional "
                f"{configured['optional']}"
            )
        configured.update(tensor)
