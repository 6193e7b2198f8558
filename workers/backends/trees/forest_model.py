"""A loaded forest, with the parameters of the configuration.

    output_class   predict_proba   output
    true           false           the index of the class, [1]
    any            true            the probability of each class [classes], or of the second of two [1]
    false          false           a regression [targets]; of classes, as with predict_proba

Source: docs/model_config.md of Triton's fil_backend.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slipstream.workers.backends.backend import Arrays, BackendError, ModelContext
from slipstream.workers.backends.file_checks import check_num_inputs, refusal, shape_text
from slipstream.workers.backends.model_settings import truth
from slipstream.workers.backends.trees.forest import Array, Forest, as_table

DTYPES = {"TYPE_FP32": np.float32, "TYPE_FP64": np.float64}
DEFAULT_THRESHOLD = 0.5


@dataclass(frozen=True, slots=True)
class ForestOutput:
    """`threshold` is that of the second of two classes. `is_class`: the output is a class; `is_probable`: predict_proba
    asks for the probability of each."""

    is_class: bool
    is_probable: bool
    threshold: float

    @classmethod
    def of(cls, model: ModelContext, forest: Forest) -> ForestOutput:
        """Raises BackendError."""
        given = model.parameters
        name = "is_classifier" if "is_classifier" in given else "output_class"
        is_classifier = truth(model, name, given.get(name), default=False)
        is_probable = truth(model, "predict_proba", given.get("predict_proba"), default=False)
        for key, is_on in ((name, is_classifier), ("predict_proba", is_probable)):
            if is_on and not forest.num_classes:
                text = f"model '{model.name}': {key} is true, but the model in the file has no classes"
                raise BackendError(text, "INVALID_ARG")
        return cls(is_classifier and not is_probable, is_probable, threshold_of(model))

    def of_scores(self, scores: Array, num_classes: int, width: int) -> Array:
        """[rows, width]."""
        table = as_table(scores)
        if num_classes == 2 and (self.is_class or width == 1):
            second: Array = table[:, -1:]
            return np.asarray(second > self.threshold) if self.is_class else second
        if self.is_class:
            return np.asarray(np.argmax(table, axis=1)).reshape(-1, 1)
        if num_classes == 2 and table.shape[1] == 1:
            return np.concatenate((1 - table, table), axis=1)
        return table


def threshold_of(model: ModelContext) -> float:
    """Raises BackendError."""
    text = model.parameters.get("threshold") or str(DEFAULT_THRESHOLD)
    try:
        return float(text)
    except ValueError:
        reason = f"model '{model.name}': threshold must be a number, got {text!r}"
        raise BackendError(reason, "INVALID_ARG") from None


class ForestModel:
    """LoadedModel."""

    def __init__(self, model: ModelContext, forest: Forest) -> None:
        """Raises BackendError if the configuration does not fit the forest."""
        self._forest = forest
        self._output = ForestOutput.of(model, forest)
        inputs, outputs = model.config.get("input", []), model.config.get("output", [])
        check_num_inputs(model, 1, len(inputs))
        if len(outputs) != 1:
            text = f"configuration has the outputs {[output['name'] for output in outputs]}, model provides one"
            raise refusal(model, text)
        for tensor in (inputs[0], outputs[0]):
            if tensor["data_type"] not in DTYPES:
                text = f"'{tensor['name']}' must be TYPE_FP32 or TYPE_FP64, got {tensor['data_type']}"
                raise refusal(model, text)
        self._name, self._output_name = inputs[0]["name"], outputs[0]["name"]
        self._dtype = DTYPES[outputs[0]["data_type"]]
        dims, self._width = list(map(int, inputs[0]["dims"])), int(outputs[0]["dims"][-1])
        if dims[-1] not in (-1, forest.num_features):
            text = f"input '{self._name}' has dims {shape_text(dims)}, model has {forest.num_features} features"
            raise refusal(model, text)
        found = self._computed(np.zeros((1, forest.num_features), np.float32)).shape[1]
        if self._width not in (-1, found):
            text = f"output '{self._output_name}' has {self._width} columns, model provides {found}"
            raise refusal(model, text)

    def execute(self, inputs: Arrays, wanted: Sequence[str]) -> Arrays:
        rows = inputs[self._name]
        computed = self._computed(rows if rows.ndim == 2 else rows.reshape(1, -1))
        return {self._output_name: computed if rows.ndim == 2 else computed[0]}

    def close(self) -> None:
        del self._forest

    def _computed(self, rows: Array) -> Array:
        if rows.shape[1] != self._forest.num_features:
            text = f"input '{self._name}' has {rows.shape[1]} columns, model has {self._forest.num_features} features"
            raise BackendError(text, "INVALID_ARG")
        scores = self._forest.scores(rows)
        return self._output.of_scores(scores, self._forest.num_classes, self._width).astype(self._dtype, copy=False)
