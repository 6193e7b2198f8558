"""Finds the model that a request is for, and words the errors if it may not have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn, Protocol

from slipstream.router.access.caller import Caller
from slipstream.router.api.exchange_context import ExchangeContext
from slipstream.router.api.generation.answer.failures import as_http_error
from slipstream.router.catalog.catalog import Catalog, Resolved, UnknownNameError, listed
from slipstream.router.catalog.served_model import ServedModel
from slipstream.router.http.http_error import HttpError
from slipstream.router.protocol.generation import GenerationError
from slipstream.router.registry.worker_abilities import WorkerAbilities

NOT_FOUND = "model_not_found"


class ModelStatus(Protocol):
    """What is known of a model by its connected workers; `model` is its name."""

    def versions_of(self, model: str) -> tuple[str, ...]:
        """Those that some decode worker takes requests for."""

    def shares_of(self, model: str) -> Mapping[str, float]:
        """The shares of new requests that these versions have, in any unit."""

    def max_model_len_of(self, model: str) -> int | None:
        """The longest sequence (prompt and output) that a worker takes; None: not known yet."""

    def abilities_of(self, model: str) -> WorkerAbilities:
        """What requests may ask of the connected workers."""


class ModelLookup:
    """Methods that take a `caller` raise HttpError 404 if there is no such model, and say which models there are that
    the caller's key allows; 403 if the key does not allow the one that was asked for."""

    def __init__(self, catalog: Catalog, status: ModelStatus) -> None:
        self._catalog = catalog
        self._status = status
        self.other_names: Callable[[Caller], list[str]] = lambda caller: []  # of models that no workers serve

    def of_generation(self, asked: str, priority: int, context: ExchangeContext, session: str) -> Resolved:
        """The model of a request for an answer. One that another router has begun keeps its model, whatever its name
        stands for now. A model that is being removed begins no more answers. Where the versions of the model have
        different texts, one is chosen: the text of the version that was asked for or has begun the answer, or else by
        the versions' shares, for a `session` always the same."""
        resolved = self._of_generation(asked, priority, context)
        name, version = resolved.model.name, resolved.version
        texts = self._catalog.entry(name).texts
        if texts is None:
            return resolved
        begun = context.checkpoint.resumed(0)
        version = version or (begun.version if begun is not None else "")
        shares = self._status.shares_of(name)
        chosen = texts.of_version(version, shares) if version else texts.choose(shares, session)
        return Resolved(chosen.model, resolved.version, chosen.versions)

    def _of_generation(self, asked: str, priority: int, context: ExchangeContext) -> Resolved:
        chosen = context.checkpoint.model()
        if chosen is None:
            resolved = self.of(asked, context.caller, priority)
            if self._catalog.entry(resolved.model.name).is_leaving:
                raise HttpError(404, f"The model {asked!r} is being removed.", param="model", code=NOT_FOUND)
            return resolved
        if chosen.name not in self._catalog:
            self._raise_unknown(asked, context.caller)
        context.caller.check(chosen.name, priority)
        return Resolved(self._catalog.entry(chosen.name).model, chosen.version)

    def of(self, asked: str, caller: Caller, priority: int) -> Resolved:
        """The model, and version, of this name."""
        try:
            model, version, _ = resolved = self._catalog.resolve(asked)
        except UnknownNameError:
            self._raise_unknown(asked, caller)
        caller.check(model.name, priority)
        if version and version not in self._status.versions_of(model.name):
            self._raise_unknown(asked, caller, model.name)
        return resolved

    def default(self, caller: Caller, priority: int) -> ServedModel:
        """The model of a request that names none: the only one. Raises HttpError 400 if there are several."""
        only = self._catalog.only
        if only is None:
            raise self.missing(caller)
        caller.check(only.name, priority)
        return only

    def limit_of(self, model: str) -> int:
        """The longest sequence of a model, the one that was known last if no worker is connected. Raises HttpError 503
        while there was none."""
        entry = self._catalog.entry(model)
        limit = entry.max_model_len = self._status.max_model_len_of(model) or entry.max_model_len
        if limit is None:
            raise as_http_error(GenerationError("not_ready", "no decode worker has connected yet", 1.0), "")
        return limit

    def longest(self) -> int | None:
        """The longest sequence of all models; None if that of none is known."""
        lengths = [self._status.max_model_len_of(entry.model.name) or 0 for entry in self._catalog]
        return max(lengths, default=0) or None

    def missing(self, caller: Caller) -> HttpError:
        """The error of a request that must name its model."""
        there_is = "" if self._catalog.only is not None else f"; this server has {self._listed('', caller)}"
        message = f"Missing required parameter: 'model'{there_is}."
        return HttpError(400, message, param="model", code="missing_required_parameter")

    def _raise_unknown(self, asked: str, caller: Caller, model: str = "") -> NoReturn:
        """`model` exists, and only the version that was asked for does not."""
        if asked in self.other_names(caller):
            message = f"The model {asked!r} does not answer at this path; its 'kinds' in /v1/models say where it does."
            raise HttpError(404, message, param="model", code=NOT_FOUND)
        has = self._listed(asked, caller)
        if model:
            versions = ", ".join(f"'{model}@{version}'" for version in self._status.versions_of(model) if version)
            has = f"{model!r} as {versions}" if versions else has
        message = f"The model {asked!r} does not exist; this server has {has}."
        raise HttpError(404, message, param="model", code=NOT_FOUND)

    def _listed(self, asked: str, caller: Caller) -> str:
        names = [*self._catalog.known_names(asked, caller.may_use), *self.other_names(caller)]
        return listed(names) or "no model that this API key may use"
