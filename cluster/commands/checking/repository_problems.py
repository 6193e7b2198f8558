"""What is wrong with the models of a repository."""

from __future__ import annotations

from collections.abc import Sequence, Set
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
