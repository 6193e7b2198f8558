"""Tensors as arrays and back, and rows in the shapes of models."""

from __future__ import annotations

import numpy as np
import pytest

from slipstream.router.api.kserve.tensor_places import TensorPlaces
from slipstream.router.api.tensors.audio.resampling import resampled
from slipstream.router.api.tensors.models.row_layout import MOST_ROWS, RowLayout
from slipstream.router.api.tensors.models.tensor_arrays import array_of, tensor_of
from slipstream.router.api.tensors.text.endpoint_tokenizer import TokenRow
from slipstream.router.api.tensors.text.token_inputs import MAX_FILLED_TOKENS, spans_of
from slipstream.router.http.http_error import HttpError
from slipstream.router.tensor_memory.region_pool import RegionPool
from slipstream.router.tensors.datatypes import DATATYPES
from slipstream.router.tensors.model_spec import TensorSpec
from tests.support.router.fake_tensor_service import tensor_model


@pytest.mark.parametrize("datatype", DATATYPES)
def test_an_array_becomes_a_tensor_and_comes_back(datatype: str) -> None:
    array = np.array([[0, 1, 1], [1, 0, 1]])
    given = array.astype(str).astype(bytes).astype(object) if datatype == "BYTES" else array
    tensor = tensor_of("x", datatype, given, TensorPlaces(None))
    assert (tensor.datatype, tensor.shape) == (datatype, (2, 3))
    back = array_of(tensor)
    assert back.tolist() == (given.tolist() if datatype == "BYTES" else array.tolist())


def test_halves_of_floats_are_rounded_to_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -3.14159], np.float32)  # two of them half way
    back = array_of(tensor_of("x", "BF16", values, TensorPlaces(None)))
    assert back.tolist() == [1.0, 1.0, 1.015625, -3.140625]


def test_large_arrays_lie_in_shared_memory_until_they_are_released() -> None:
    with RegionPool(1 << 20) as pool:
        places = TensorPlaces(pool)
        tensor = tensor_of("x", "FP32", np.arange(50_000), places)
        assert pool.usage.num_leases == 1
        assert array_of(tensor)[-1] == 49_999
        places.release()
        assert pool.usage.num_leases == 0


def layout_of(dims: tuple[int, ...], max_batch_size: int) -> tuple[RowLayout, TensorSpec]:
    tensor = TensorSpec("x", "FP32", dims)
    return RowLayout("Endpoint 'e'", tensor_model("m", [tensor], [], max_batch_size)), tensor


@pytest.mark.parametrize(
    ("dims", "max_batch_size", "row", "num_rows", "shape"),
    [
        ((1,), 8, (), 8, (3, 1)),
        ((-1,), 8, (7,), 8, (3, 7)),
        ((1, 1), 8, (), 8, (3, 1, 1)),
        ((-1,), 0, (), MOST_ROWS, (3,)),
        ((4,), 0, (), 4, (3,)),
        ((-1, -1), 0, (7,), MOST_ROWS, (3, 7)),
        ((1, 1), 0, (), 1, (1, 1)),
        ((1,), 0, (), 1, (1,)),
        ((-1,), 0, (7,), 1, (7,)),
    ],
)
def test_rows_are_along_the_axis_that_the_model_has_for_them(
    dims: tuple[int, ...], max_batch_size: int, row: tuple[int, ...], num_rows: int, shape: tuple[int, ...]
) -> None:
    layout, tensor = layout_of(dims, max_batch_size)
    most = layout.num_rows(tensor, len(row))
    assert most == num_rows
    assert layout.placed(tensor, np.zeros((min(3, most), *row))).shape == shape


def test_a_row_that_has_no_place_is_a_fault_of_the_configuration() -> None:
    layout, tensor = layout_of((1,), 8)
    with pytest.raises(HttpError, match="input 'x' has 2 axes, a row needs 3"):
        layout.placed(tensor, np.zeros((2, 3, 4)))
    with pytest.raises(HttpError, match=r"output 'y' has the shape \[2, 5\] for 3 rows"):
        layout.rows_of("y", np.zeros((2, 5)), 3)


@pytest.mark.parametrize(("rate", "wanted"), [(48_000, 16_000), (8_000, 16_000), (22_050, 16_000), (44_100, 8_000)])
def test_another_rate_keeps_what_both_rates_can_tell(rate: int, wanted: int) -> None:
    def tone(at: int, hertz: float) -> np.ndarray:
        return np.sin(2 * np.pi * hertz * np.arange(at // 2) / at).astype(np.float32)

    low = resampled(tone(rate, 700), rate, wanted)
    assert len(low) == -(-(rate // 2) * wanted // rate)
    assert low[200:-200] == pytest.approx(tone(wanted, 700)[200 : len(low) - 200], abs=5e-3)
    if wanted < rate:
        gone = resampled(tone(rate, wanted * 0.75), rate, wanted)  # would come back as a lower one
        assert np.abs(gone[200:-200]).max() < 0.01


def test_a_long_text_is_not_in_a_call_with_many_short_ones() -> None:
    short, long = TokenRow([1], [0]), TokenRow([1] * MAX_FILLED_TOKENS, [0] * MAX_FILLED_TOKENS)
    assert spans_of([short] * 5, 2) == [(0, 2), (2, 4), (4, 5)]
    assert spans_of([short, short, long, short], 64) == [(0, 2), (2, 3), (3, 4)]
    assert spans_of([long], 1) == [(0, 1)]
