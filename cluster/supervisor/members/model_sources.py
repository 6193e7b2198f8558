"""The models of a cluster in the form that its router takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.cluster.supervisor.members.routed_model import RoutedModel, RoutedText
from slipstream.router.registry.expected_workers import ExpectedWorkers

if TYPE_CHECKING:
    from slipstream.router.catalog.served_model import ModelSource


def sources_of(model: RoutedModel, workers: Mapping[str, ExpectedWorkers]) -> Iterator[ModelSource]:
    """The model, and the texts of its versions, in the form that the router takes."""
    yield source_of(model, workers.get(model.served.name, ExpectedWorkers()))
    yield from map(source_of_text, model.texts)


def source_of_text(text: RoutedText) -> ModelSource:
    """The text of a version that has one of its own."""
    from slipstream.router.catalog.served_model import ModelSource  # imports the tokenizer

    served = text.served
    return ModelSource(
        served.name,
        Path(served.path),
        served.generation_config,
        served.chat_template_content_format,
        text.manifests,
        text_of=text.version,
        parsers=served.parsers,
    )


def source_of(model: RoutedModel, expected: ExpectedWorkers) -> ModelSource:
    """The model in the form that the router takes."""
    from slipstream.router.catalog.served_model import ModelSource  # imports the tokenizer

    served = model.served
    return ModelSource(
        served.name,
        Path(served.path),
        served.generation_config,
        served.chat_template_content_format,
        model.manifests,
        served.aliases,
        model.dispatch,
        has_prefill_pool=expected.num_prefill > 0,
        weight=model.weight,
        parsers=served.parsers,
    )
