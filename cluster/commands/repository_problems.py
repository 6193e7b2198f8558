"""What is wrong with the models of a repository."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slipstream.router.config.repository_config import RepositoryConfig

if TYPE_CHECKING:
    from slipstream.router.model_repository.repository_check import Problem


def problems_in_repository(config: RepositoryConfig) -> Sequence[Problem]:
    """All problems, in the order of models."""
    if not config.is_on:
        return []
    # Only here: other clusters need no protobuf.
    from slipstream.router.model_repository.repository_check import check_repository
    from slipstream.router.tensor_models import options_of

    return check_repository(config.paths, options_of(config))
