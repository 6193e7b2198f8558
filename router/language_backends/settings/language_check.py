"""What is wrong with the language models of a repository, found without serving one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path

from slipstream.router.language_backends.settings.language_settings import LanguageSettings, is_beside, unknown_model
from slipstream.router.model_repository.config.backends import LANGUAGE_BACKENDS
from slipstream.router.model_repository.model_draft import ModelDraft
from slipstream.router.model_repository.model_repository import ModelRepository
from slipstream.router.model_repository.read_options import ReadOptions
from slipstream.router.model_repository.repository_check import Problem
from slipstream.router.model_repository.repository_error import LoadError, RepositoryError


def check_language_models(
    folders: Sequence[str | Path], options: ReadOptions, named: Mapping[str, str], served: Set[str]
) -> Iterator[Problem]:
    """`named` are those that the deployment sets for models of the repository, `served` the names of the cluster's own.
    Models that cannot be read are left out: `check_repository` says why."""
    repository = ModelRepository(folders, options)
    try:
        names = repository.names()
    except RepositoryError:
        return
    for name in names:
        try:
            draft = repository.read(name)
        except (RepositoryError, LoadError):
            continue
        if draft.backend in LANGUAGE_BACKENDS:
            yield from problems_of(draft, named.get(name, ""), served)


def problems_of(draft: ModelDraft, named: str, served: Set[str]) -> Iterator[Problem]:
    for version in draft.versions:
        place = str(draft.folder / version)
        try:
            settings = LanguageSettings.read(draft, version)
        except LoadError as error:
            yield Problem(place, "", error.cause)
            continue
        is_known = any(asked in served or is_beside(asked, draft) for asked in (draft.name, *settings.asked))
        if not (named or settings.path or is_known):
            yield Problem(place, "", settings.fault or unknown_model(draft.name, settings.asked))
