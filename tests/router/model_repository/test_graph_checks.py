"""What is refused of an ensemble when its models are known, with the texts of the real server."""

from __future__ import annotations

import pytest

from slipstream.router.model_repository.graph_checks import checked_graph
from slipstream.router.model_repository.repository_error import LoadError
from slipstream.router.tensors.model_spec import ModelSpec
from tests.support.router.ensemble_lab import model, step

A, STREAM = model("a"), model("stream", is_decoupled=True)
ADD = model("add", "A B", "OUT")
OPTIONAL = model("add", "A", optional="B")
ONE = (step("a", {"IN": "IN"}, {"OUT": "OUT"}),)
TWO = (step("a", {"IN": "IN"}, {"OUT": "x"}), step("b", {"IN": "x"}, {"OUT": "OUT"}))


def checked(spec: ModelSpec, *models: ModelSpec) -> bool:
    by_name = {one.name: one for one in models}
    return checked_graph(spec, [by_name[one.model] for one in spec.steps])


@pytest.mark.parametrize(
    ("spec", "models", "text"),
    [
        (
            model("E", max_batch_size=8, steps=ONE),
            [model("a", max_batch_size=4)],
            "ensemble E allows maximum batch size 8, but it contains model a which only allows maximum batch size to "
            "be 4",
        ),
        (
            model("E", steps=TWO),
            [A, model("b", datatype="FP32")],
            "in ensemble E, ensemble tensor x: inconsistent data type: TYPE_INT32 is inferred from model a while "
            "TYPE_FP32 is inferred from model b",
        ),
        (
            model("E", steps=ONE, dims=(4,)),
            [model("a", dims=(3,))],
            "in ensemble E, ensemble tensor IN: inconsistent shape: [4] is inferred from model E while [3] is inferred "
            "from model a",
        ),
        (
            model("E", steps=ONE, dims=(4,), max_batch_size=2),
            [model("a", dims=(3, 5))],
            "in ensemble E, ensemble tensor IN: inconsistent shape: [-1,4] is inferred from model E while [3,5] is "
            "inferred from model a",
        ),
        (
            model("E", steps=(step("add", {"A": "IN"}, {"OUT": "OUT"}),)),
            [ADD],
            "in ensemble E, input B in model add is not mapped to any ensemble tensors",
        ),
        (
            model("E", steps=(step("a", {"IN": "IN", "Q": "IN"}, {"OUT": "OUT"}),)),
            [A],
            "in ensemble E, ensemble tensor IN is mapping to non-existing input Q in model a",
        ),
        (
            model("E", steps=(step("a", {"IN": "IN"}, {"Q": "OUT"}),)),
            [A],
            "in ensemble E, ensemble tensor OUT is mapped from non-existing output Q in model a",
        ),
        (
            model(
                "E",
                steps=(
                    step("stream", {"IN": "IN"}, {"OUT": "x"}),
                    step("add", {"A": "x", "B": "IN"}, {"OUT": "OUT"}),
                ),
            ),
            [STREAM, ADD],
            "in ensemble E, step of model 'E' receives inputs originated from different decoupled models",
        ),
        (
            model(
                "E",
                outputs="OUT O2",
                steps=(step("stream", {"IN": "IN"}, {"OUT": "OUT"}), step("a", {"IN": "IN"}, {"OUT": "O2"})),
            ),
            [STREAM, A],
            "in ensemble E, step of model 'E' receives inputs originated from different decoupled models",
        ),
    ],
)
def test_steps_that_do_not_fit_together_are_refused(spec: ModelSpec, models: list[ModelSpec], text: str) -> None:
    with pytest.raises(LoadError) as failure:
        checked(spec, *models)
    assert failure.value.cause == text


def test_an_ensemble_is_decoupled_if_one_of_its_models_is() -> None:
    assert checked(model("E", steps=(step("stream", {"IN": "IN"}, {"OUT": "OUT"}),)), STREAM)
    assert not checked(model("E", steps=ONE), A)


def test_an_optional_input_need_not_be_mapped() -> None:
    assert not checked(model("E", steps=(step("add", {"A": "IN"}, {"OUT": "OUT"}),)), OPTIONAL)


def test_a_model_without_batches_may_have_the_batch_dimension_in_its_own_dims() -> None:
    spec = model("E", steps=ONE, dims=(4,), max_batch_size=2)
    assert not checked(spec, model("a", dims=(-1, 4)))
