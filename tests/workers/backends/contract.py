"""What every backend does. The tests of a backend inherit `BackendContract` and say what its `Sample` is."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slipstream.workers.backends.backend import Backend, BackendError, LoadedModel, ModelContext

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Sample:
    """A model with a file and a complete configuration, which computes each row of a batch by itself. `inputs` has at
    least three different rows, `outputs` what the model makes of them."""

    model: ModelContext
    inputs: dict[str, Array]
    outputs: dict[str, Array]

    @property
    def num_rows(self) -> int:
        return len(next(iter(self.inputs.values())))

    def rows(self, first: int, end: int) -> dict[str, Array]:
        return {name: array[first:end] for name, array in self.inputs.items()}


class BackendContract:
    """`backend` is the module."""

    backend: Any
    tolerance: float = 1e-6

    def sample(self, folder: Path) -> Sample:
        """Writes a model below `folder`."""
        raise NotImplementedError

    def loaded(self, model: ModelContext) -> LoadedModel:
        backend: Backend = self.backend
        return backend.load(model)

    def assert_outputs(self, sample: Sample, outputs: Any, first: int, end: int) -> None:
        for name, expected in sample.outputs.items():
            assert outputs[name].dtype == expected.dtype, name
            np.testing.assert_allclose(outputs[name], expected[first:end], rtol=self.tolerance, atol=self.tolerance)

    def test_a_batch_has_the_results_of_its_rows(self, tmp_path: Path) -> None:
        sample = self.sample(tmp_path)
        model = self.loaded(sample.model)
        self.assert_outputs(sample, model.execute(sample.inputs, list(sample.outputs)), 0, sample.num_rows)
        for row in range(sample.num_rows):
            outputs = model.execute(sample.rows(row, row + 1), list(sample.outputs))
            self.assert_outputs(sample, outputs, row, row + 1)
        model.close()

    def test_inputs_may_be_read_only_and_stay_as_they_are(self, tmp_path: Path) -> None:
        sample = self.sample(tmp_path)
        model = self.loaded(sample.model)
        given = {}
        for name, array in sample.inputs.items():
            given[name] = np.frombuffer(array.tobytes(), array.dtype).reshape(array.shape)
            assert not given[name].flags.writeable
        self.assert_outputs(sample, model.execute(given, list(sample.outputs)), 0, sample.num_rows)
        for name, array in sample.inputs.items():
            np.testing.assert_array_equal(given[name], array)
        model.close()

    def test_each_output_can_be_asked_for_alone(self, tmp_path: Path) -> None:
        sample = self.sample(tmp_path)
        model = self.loaded(sample.model)
        for name in sample.outputs:
            outputs = model.execute(sample.inputs, [name])
            np.testing.assert_allclose(outputs[name], sample.outputs[name], rtol=self.tolerance, atol=self.tolerance)
        model.close()

    def test_executions_do_not_influence_each_other(self, tmp_path: Path) -> None:
        sample = self.sample(tmp_path)
        one, other = self.loaded(sample.model), self.loaded(sample.model)
        for end in (sample.num_rows, 1, sample.num_rows, 2):
            for model in (one, other):
                self.assert_outputs(sample, model.execute(sample.rows(0, end), list(sample.outputs)), 0, end)
        one.close()
        self.assert_outputs(sample, other.execute(sample.rows(0, 1), list(sample.outputs)), 0, 1)
        other.close()

    def test_a_complete_configuration_stays_as_it_is(self, tmp_path: Path) -> None:
        sample = self.sample(tmp_path)
        config = copy.deepcopy(sample.model.config)
        assert self.backend.complete(sample.model) == config

    def test_a_file_that_is_missing_is_named(self, tmp_path: Path) -> None:
        model = replace(self.sample(tmp_path).model, model_file=tmp_path / "absent.file")
        with pytest.raises(BackendError, match=r"absent\.file"):
            self.loaded(model)

    def test_a_file_that_is_broken_is_refused(self, tmp_path: Path) -> None:
        model = self.sample(tmp_path).model
        model.model_file.write_bytes(b"no model")
        with pytest.raises(BackendError):
            self.loaded(model)

    def test_an_input_that_the_file_does_not_have_is_refused(self, tmp_path: Path) -> None:
        model = self.sample(tmp_path).model
        model.config["input"].append({"name": "EXTRA", "data_type": "TYPE_FP32", "dims": [1]})
        with pytest.raises(BackendError, match="m'"):
            self.loaded(model)
