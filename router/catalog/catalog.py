"""The models that a router serves, by all the names that clients may ask for.

    asked for        served
    chat             chat, any version
    chat@3           chat, version 3
    gpt-4o-mini      code, of which it is an alias
    gpt-4o-mini@3    code, version 3

One table has the names and the aliases, so a request costs one lookup, or two if it names a version, however many
models there are. A version has no `@`; a name may have one, and the whole of what was asked for is looked up first.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import add
from typing import Literal, NamedTuple

from slipstream.router.catalog.model_texts import ModelTexts
from slipstream.router.catalog.served_model import ServedModel
from slipstream.router.protocol.model_id import SEPARATOR

MAX_NAMES_SHOWN = 20
MAX_NEAREST = 3  # names that come before the others because they are alike
ALIKE = 0.4

# serving: a worker takes requests. loading: its workers are on their way. cold: it has none until a request comes. In
# both cases requests wait. leaving: it is being removed, and only what runs is finished.
ModelState = Literal["serving", "loading", "cold", "leaving"]


class UnknownNameError(LookupError):
    """No model has the name, or the alias, that was `asked` for."""

    def __init__(self, asked: str) -> None:
        super().__init__(f"there is no model {asked!r}")
        self.asked = asked


class NameTakenError(ValueError):
    """A name or an alias belongs to another model already."""

    def __init__(self, name: str, model: str) -> None:
        of_which = "is served already" if name == model else f"is an alias of the model {model!r}"
        super().__init__(f"the name {name!r} {of_which}")
        self.name = name
        self.model = model


class Resolved(NamedTuple):
    """What a name stands for. `version` is the one that was asked for, "" if none was; whether it exists is known where
    the workers are. `versions` are those that may serve the request, (): any."""

    model: ServedModel
    version: str
    versions: tuple[str, ...] = ()


@dataclass(slots=True)
class CatalogEntry:
    """A model, and since when it is served, in seconds since 1970. A `wants_workers` of False: it has none until a
    request comes. `max_model_len` is the longest sequence that its workers took when there were any, because requests
    may wait for the next worker. `texts` are there if versions have different ones."""

    model: ServedModel
    created_s: int
    wants_workers: bool = True
    is_leaving: bool = False
    max_model_len: int | None = None
    texts: ModelTexts | None = None

    def state(self, has_workers: bool) -> ModelState:
        if self.is_leaving:
            return "leaving"
        if has_workers:
            return "serving"
        return "loading" if self.wants_workers else "cold"


@dataclass(slots=True)
class Catalog:
    """The models by name, in the order in which they were added. No name or alias stands for two of them."""

    _entries: dict[str, CatalogEntry] = field(default_factory=dict)
    _resolved: dict[str, Resolved] = field(default_factory=dict)  # by each name and alias

    @classmethod
    def of(cls, models: Iterable[ServedModel]) -> Catalog:
        """Raises NameTakenError."""
        catalog = cls()
        for model in models:
            catalog.add(model)
        return catalog

    def __iter__(self) -> Iterator[CatalogEntry]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: str) -> bool:
        """Whether there is a model of this name; aliases do not count."""
        return name in self._entries

    @property
    def only(self) -> ServedModel | None:
        """The model, if there is exactly one."""
        return next(iter(self._entries.values())).model if len(self._entries) == 1 else None

    @property
    def aliases(self) -> Mapping[str, str]:
        """The name that each alias stands for."""
        return {alias: entry.model.name for entry in self for alias in entry.model.aliases}

    def resolve(self, asked: str) -> Resolved:
        """What a client asks for with a name or an alias, perhaps with `@version`. Raises UnknownNameError."""
        resolved = self._resolved.get(asked)
        if resolved is not None:
            return resolved
        name, _, version = asked.rpartition(SEPARATOR)
        resolved = self._resolved.get(name) if version else None
        if resolved is None:
            raise UnknownNameError(asked)
        texts = self._entries[resolved.model.name].texts
        model = resolved.model if texts is None else texts.of_version(version, {}).model
        return Resolved(model, version)

    def entry(self, name: str) -> CatalogEntry:
        """Raises UnknownNameError if there is no model of this name; aliases do not count."""
        entry = self._entries.get(name)
        if entry is None:
            raise UnknownNameError(name)
        return entry

    def add(self, model: ServedModel) -> None:
        """Raises NameTakenError if its name or one of its aliases is taken; then nothing has changed."""
        self.check_free((model.name, *model.aliases))
        self._entries[model.name] = CatalogEntry(model, int(time.time()))
        self._name(model)

    def check_free(self, names: Iterable[str]) -> None:
        """Raises NameTakenError if a name or an alias among these stands for a model, or comes twice."""
        new = set[str]()
        for name in names:
            resolved = self._resolved.get(name)
            if resolved is not None:
                raise NameTakenError(name, resolved.model.name)
            if name in new:
                raise ValueError(f"the name {name!r} is given twice")
            new.add(name)

    def remove(self, name: str) -> ServedModel:
        """Removes a model with its aliases. Raises UnknownNameError."""
        model = self.entry(name).model
        del self._entries[name]
        for known in (name, *model.aliases):
            del self._resolved[known]
        return model

    def set_text(self, model: ServedModel) -> None:
        """Gives a model another tokenizer, another format of outputs, and other defaults. Raises UnknownNameError."""
        entry = self.entry(model.name)
        entry.model = replace(entry.model, tokenizer=model.tokenizer, defaults=model.defaults, outputs=model.outputs)
        self._name(entry.model)
        if entry.texts is not None:
            entry.texts.own = entry.model

    def add_text(self, version: str, model: ServedModel) -> None:
        """From now on this version of the model has a text of its own. Raises UnknownNameError."""
        entry = self.entry(model.name)
        if entry.texts is None:
            entry.texts = ModelTexts(entry.model)
        entry.texts.others[version] = model

    def remove_text(self, name: str, version: str) -> None:
        """The version has the model's own text, or is not served any more."""
        entry = self._entries.get(name)
        if entry is not None and entry.texts is not None:
            entry.texts.others.pop(version, None)
            if not entry.texts.others:
                entry.texts = None

    def set_aliases(self, name: str, aliases: Iterable[str]) -> None:
        """Gives a model these aliases and no others. One that another model has moves here. Raises UnknownNameError,
        and NameTakenError if one of them is the name of a model; then nothing has changed."""
        entry = self.entry(name)
        new = tuple(dict.fromkeys(aliases))
        for alias in new:
            if alias in self._entries:
                raise NameTakenError(alias, alias)
        for alias in new:
            former = self._resolved.get(alias)
            if former is not None and former.model.name != name:
                kept = tuple(one for one in former.model.aliases if one != alias)
                self._replace(self._entries[former.model.name], kept)
        self._replace(entry, new)

    def _replace(self, entry: CatalogEntry, aliases: tuple[str, ...]) -> None:
        for alias in entry.model.aliases:
            del self._resolved[alias]
        entry.model = replace(entry.model, aliases=aliases)
        self._name(entry.model)
        if entry.texts is not None:
            entry.texts.own = entry.model

    def _name(self, model: ServedModel) -> None:
        resolved = Resolved(model, "")
        for name in (model.name, *model.aliases):
            self._resolved[name] = resolved

    def known_names(self, near: str, is_allowed: Callable[[str], bool]) -> list[str]:
        """Names and aliases of the models that `is_allowed` is true of, by their name, for an answer to a client that
        asked for something else: those that are written most like `near` first, then the others in their order.

        Alike is what has many pairs of letters in common (Dice's coefficient). `difflib` would take 5 ms for 100
        models, in which no other request could be served."""
        names = [known for known, resolved in self._resolved.items() if is_allowed(resolved.model.name)]
        pairs = pairs_of(near)
        alike = {name: 2 * len(pairs & own) / (len(pairs) + len(own) or 1) for name in names if (own := pairs_of(name))}
        nearest = [name for name in heapq.nlargest(MAX_NEAREST, alike, key=alike.__getitem__) if alike[name] >= ALIKE]
        return [*nearest, *(name for name in names if name not in nearest)]


@lru_cache(4096)
def pairs_of(name: str) -> frozenset[str]:
    """The pairs of letters that follow one another in a name, whatever their case."""
    letters = name.lower()
    return frozenset(map(add, letters, letters[1:]))


def listed(names: list[str]) -> str:
    """The names as they are put into a sentence; of very many, only the first."""
    shown = ", ".join(map(repr, names[:MAX_NAMES_SHOWN]))
    return shown if len(names) <= MAX_NAMES_SHOWN else f"{shown} and {len(names) - MAX_NAMES_SHOWN} more"
