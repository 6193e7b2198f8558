"""Settings of a deployment that name a model which its repository does not have."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from slipstream.router.config.endpoints_config import RerankEndpoint
from slipstream.router.config.repository_config import ALL_MODELS, RepositoryConfig


def unknown_models(config: RepositoryConfig, names: Collection[str]) -> Iterator[str]:
    """A sentence, which begins with the key, for each setting of a model that is not in `names`, those of the
    repository. Only in the control mode `none` is it surely a mistake: in others the model may come later."""
    for key in ("versions", "instances", "language_models"):
        for model in getattr(config, key):
            if model not in names:
                yield _sentence(f"{key}.{model}", model)


def unknown_first_loads(config: RepositoryConfig, names: Collection[str]) -> Iterator[str]:
    """As `unknown_models`, of the models that are to be loaded at the start."""
    for index, model in enumerate(config.load_models):
        if model != ALL_MODELS and model not in names:
            yield _sentence(f"load_models.{index}", model)


def unknown_endpoint_models(config: RepositoryConfig, names: Collection[str]) -> Iterator[str]:
    """As `unknown_models`, of endpoints, which answer with 404 until their model is there."""
    for kind, endpoints in config.endpoints.of_kinds().items():
        for name, endpoint in endpoints.items():
            model = endpoint.model or name
            has_none_of_its_own = isinstance(endpoint, RerankEndpoint) and endpoint.embeddings
            if model not in names and not has_none_of_its_own:
                yield _sentence(f"endpoints.{kind}.{name}", model)


def _sentence(key: str, model: str) -> str:
    return f"repository.{key}: the repository has no model {model!r}"
