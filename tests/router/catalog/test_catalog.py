"""The names of models: any sequence of changes leaves each name with one model at most."""

from __future__ import annotations

from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from slipstream.router.catalog.catalog import MAX_NAMES_SHOWN, Catalog, NameTakenError, UnknownNameError, listed
from slipstream.router.catalog.served_model import ServedModel
from slipstream.router.text.tokenizer import Tokenizer

NO_TOKENIZER = cast(Tokenizer, None)  # names are all that counts here
NAMES = st.sampled_from(["a", "b", "c", "org/a", "a@1", "a@1@2", "@", "b@x"])
ALIASES = st.lists(NAMES, max_size=3).map(tuple)


def served(name: str, *aliases: str) -> ServedModel:
    return ServedModel(name, NO_TOKENIZER, aliases=aliases)


class CatalogMachine(RuleBasedStateMachine):
    """Beside the catalog, a plain table of which name stands for which model."""

    def __init__(self) -> None:
        super().__init__()
        self.catalog = Catalog()
        self.aliases: dict[str, list[str]] = {}  # by the name of their model

    def taken(self) -> dict[str, str]:
        return {known: name for name, aliases in self.aliases.items() for known in (name, *aliases)}

    @rule(name=NAMES, aliases=ALIASES)
    def add(self, name: str, aliases: tuple[str, ...]) -> None:
        names = (name, *aliases)
        if len(set(names)) < len(names) or self.taken().keys() & set(names):
            with pytest.raises(ValueError, match="name"):
                self.catalog.add(served(name, *aliases))
        else:
            self.catalog.add(served(name, *aliases))
            self.aliases[name] = list(aliases)

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        if name in self.aliases:
            assert self.catalog.remove(name).name == name
            del self.aliases[name]
        else:
            with pytest.raises(UnknownNameError):
                self.catalog.remove(name)

    @rule(name=NAMES, aliases=ALIASES)
    def set_aliases(self, name: str, aliases: tuple[str, ...]) -> None:
        if name not in self.aliases:
            with pytest.raises(UnknownNameError):
                self.catalog.set_aliases(name, aliases)
        elif self.aliases.keys() & set(aliases):
            with pytest.raises(NameTakenError):
                self.catalog.set_aliases(name, aliases)
        else:
            self.catalog.set_aliases(name, aliases)
            for former in self.aliases.values():
                former[:] = [alias for alias in former if alias not in aliases]
            self.aliases[name] = list(dict.fromkeys(aliases))

    @rule(base=NAMES, version=st.sampled_from(["", "1", "2", "x"]))
    def resolve(self, base: str, version: str) -> None:
        taken = self.taken()
        asked = f"{base}@{version}"
        before, _, after = asked.rpartition("@")
        if asked in taken:
            expected = (taken[asked], "")
        elif before in taken and after:
            expected = (taken[before], after)
        else:
            with pytest.raises(UnknownNameError) as unknown:
                self.catalog.resolve(asked)
            assert unknown.value.asked == asked
            return
        resolved = self.catalog.resolve(asked)
        assert (resolved.model.name, resolved.version) == expected

    @invariant()
    def every_name_stands_for_its_model(self) -> None:
        for known, name in self.taken().items():
            model, version, _ = self.catalog.resolve(known)
            assert (model.name, version) == (name, "")
            assert self.catalog.entry(name).model is model
        assert [entry.model.name for entry in self.catalog] == list(self.aliases)
        assert self.catalog.aliases == {alias: name for name, of in self.aliases.items() for alias in of}
        assert len(self.catalog) == len(self.aliases)
        assert (self.catalog.only is not None) == (len(self.aliases) == 1)


TestCatalog = CatalogMachine.TestCase


def test_the_names_that_are_written_most_alike_come_first_and_forbidden_ones_are_left_out() -> None:
    catalog = Catalog.of([served("chat-8b", "gpt-4o"), served("code-7b"), served("draft-1b")])
    assert catalog.known_names("code-8b", lambda name: True)[0] == "code-7b"
    assert catalog.known_names("gpt-4", lambda name: name == "chat-8b") == ["gpt-4o", "chat-8b"]
    assert catalog.known_names("chat", lambda name: False) == []


@given(st.integers(0, 50))
def test_of_many_names_only_the_first_are_listed(num_names: int) -> None:
    text = listed([f"model-{number}" for number in range(num_names)])
    assert text.count("model-") == min(num_names, MAX_NAMES_SHOWN)
    assert text.endswith(" more") == (num_names > MAX_NAMES_SHOWN)


def test_a_model_without_workers_is_loading_or_cold_and_one_that_leaves_is_neither() -> None:
    catalog = Catalog.of([served("a")])
    entry = catalog.entry("a")
    assert (entry.state(has_workers=True), entry.state(has_workers=False)) == ("serving", "loading")
    entry.wants_workers = False
    assert entry.state(has_workers=False) == "cold"
    entry.is_leaving = True
    assert entry.state(has_workers=True) == "leaving"
