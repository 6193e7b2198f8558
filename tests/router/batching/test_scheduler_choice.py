"""Which scheduler a model has, and whether its responses keep the order of its requests."""

from __future__ import annotations

import pytest

from slipstream.router.batching.dynamic_batcher import DynamicBatcher
from slipstream.router.batching.scheduler_choice import preserves_ordering, scheduler_of
from slipstream.router.batching.sequence_batcher import SequenceBatcher
from slipstream.router.tensors.model_spec import DynamicBatching, ModelSpec, SequenceBatching
from tests.support.router.batching.made_requests import spec_of


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (spec_of(), DynamicBatcher),
        (spec_of(4, dynamic_batching=DynamicBatching()), DynamicBatcher),
        (spec_of(4, sequence_batching=SequenceBatching()), SequenceBatcher),
    ],
)
def test_a_model_with_sequences_has_their_scheduler(spec: ModelSpec, expected: type) -> None:
    assert isinstance(scheduler_of(spec), expected)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (spec_of(), False),
        (spec_of(4, dynamic_batching=DynamicBatching()), False),
        (spec_of(4, dynamic_batching=DynamicBatching(preserve_ordering=True)), True),
        (spec_of(4, sequence_batching=SequenceBatching(strategy="oldest", preserve_ordering=True)), True),
        (spec_of(4, sequence_batching=SequenceBatching(strategy="oldest")), False),
    ],
)
def test_responses_keep_the_order_where_the_model_says_so(spec: ModelSpec, expected: bool) -> None:
    assert preserves_ordering(spec) is expected
