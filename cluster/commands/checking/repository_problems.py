"""What is wrong with the models of a repository."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipstream.router.config.repository_config import RepositoryConfig

if TYPE_CHECKING:
    from slipstream.router.model_repository.repository_check import Problem


def problems_in_repository(config: RepositoryConfig, served: Set[str] = frozenset()) -> Sequence[Problem]:
    """All problems, in the order of models. `served` are the names of the language models beside the repository."""
    if not config.is_on:
        return []
    # Only here: other clusters need no protobuf.
    from slipstream.router.language_backends.settings.language_check import check_language_models
    from slipstream.router.model_repository.repository_check import check_repository
    from slipstream.router.tensor_models import options_of

    options = options_of(config)
    of_language = check_language_models(config.paths, options, config.language_models, served)
    return [*check_repository(config.paths, options), *of_language]


@dataclass(frozen=True, slots=True)
class NamedModels:
    """Sentences about settings whose model the repository does not have, each with its key: those that a start refuses,
    and those of models that may come later."""

    refusals: Sequence[str] = ()
    warnings: Sequence[str] = ()


def named_models(config: RepositoryConfig) -> NamedModels:
    """Nothing of a repository that cannot be read: `problems_in_repository` says so."""
    if not config.is_on:
        return NamedModels()
    # Only here: other clusters need no protobuf.
    from slipstream.router.config.unknown_models import (
        unknown_endpoint_models,
        unknown_first_loads,
        unknown_models,
    )
    from slipstream.router.model_repository.model_repository import ModelRepository
    from slipstream.router.model_repository.repository_error import RepositoryError
    from slipstream.router.tensor_models import options_of

    try:
        names = ModelRepository(config.paths, options_of(config)).names()
    except RepositoryError:
        return NamedModels()
    settings, loads = list(unknown_models(config, names)), list(unknown_first_loads(config, names))
    endpoints = list(unknown_endpoint_models(config, names))
    if not config.exit_on_error:
        return NamedModels((), [*settings, *loads, *endpoints])
    if config.control_mode == "none":
        return NamedModels([*settings, *loads], endpoints)
    return NamedModels(loads, [*settings, *endpoints])
