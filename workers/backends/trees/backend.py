"""Backend `fil`: completes and loads a model of decision trees."""

from __future__ import annotations

from slipstream.workers.backends.backend import Config, LoadedModel, ModelContext
from slipstream.workers.backends.model_settings import whole_number
from slipstream.workers.backends.trees.forest import Forest
from slipstream.workers.backends.trees.forest_file import read_forest
from slipstream.workers.backends.trees.forest_model import ForestModel, ForestOutput

INPUT, OUTPUT = "input__0", "output__0"
MAX_BATCH_SIZE_SETTING = "default-max-batch-size"
DEFAULT_MAX_BATCH_SIZE = 8192  # rows, which are small and cost little


def complete(model: ModelContext) -> Config:
    config = model.config
    if config.get("input") and config.get("output"):
        return config
    forest = read_forest(model)
    if not model.max_batch_size:
        setting = model.settings.get(MAX_BATCH_SIZE_SETTING)
        config["max_batch_size"] = whole_number(model, MAX_BATCH_SIZE_SETTING, setting) or DEFAULT_MAX_BATCH_SIZE
    config.setdefault("dynamic_batching", {})
    if not config.get("input"):
        config["input"] = [{"name": INPUT, "data_type": "TYPE_FP32", "dims": [forest.num_features]}]
    if not config.get("output"):
        config["output"] = [{"name": OUTPUT, "data_type": "TYPE_FP32", "dims": [num_columns(model, forest)]}]
    return config


def load(model: ModelContext) -> LoadedModel:
    return ForestModel(model, read_forest(model))


def num_columns(model: ModelContext, forest: Forest) -> int:
    """Of the output: one for each class with predict_proba, or if there is no other way to say which one. Raises
    BackendError."""
    output = ForestOutput.of(model, forest)
    if output.is_class or not forest.num_classes or (forest.num_classes == 2 and not output.is_probable):
        return 1
    return forest.num_classes
