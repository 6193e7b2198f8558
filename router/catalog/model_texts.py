"""The texts of a model whose versions have different tokenizers, chat templates or sampling defaults.

    versions  1  2  3        a text: the versions whose tokens mean the same
              '--'  '--- served with a text of its own
            the model's own

The text of a request is chosen before it is tokenised, and the dispatcher then chooses among the versions of that text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from slipstream.router.catalog.served_model import ServedModel


class ChosenText(NamedTuple):
    """`versions` are those that may serve the request."""

    model: ServedModel
    versions: tuple[str, ...]


@dataclass(slots=True)
class ModelTexts:
    """`others` are the texts of versions that do not have the model's `own`, which all other versions have."""

    own: ServedModel
    others: dict[str, ServedModel] = field(default_factory=dict)
    _debts: dict[str, float] = field(default_factory=dict)  # by the first version of a text
    _own_versions: tuple[str, ...] = ()  # when there were any

    def of_version(self, version: str, shares: Mapping[str, float]) -> ChosenText:
        """The text of a version, of those that are live with these shares."""
        other = self.others.get(version)
        if other is not None:
            return ChosenText(other, (version,))
        versions = tuple(one for one in shares if one not in self.others)
        return ChosenText(self.own, versions or (version,))

    def choose(self, shares: Mapping[str, float], session: str) -> ChosenText:
        """The text for a request, by the shares of the live versions of new requests. The requests of a session, which
        may come to different processes, get the same one as long as shares stay: by a hash, so that with a growing
        share of another version each session changes at most once."""
        texts = {version: ChosenText(self.others[version], (version,)) for version in self.others if version in shares}
        own = tuple(version for version in shares if version not in self.others)
        self._own_versions = own or self._own_versions
        weights = {version: shares[version] for version in texts}
        if own or not texts:
            first = own[0] if own else ""
            texts = {first: ChosenText(self.own, self._own_versions)} | texts
            weights = {first: sum(shares[version] for version in own)} | weights
        total = sum(weights.values())
        if len(texts) == 1 or not total:
            return next(iter(texts.values()))
        return texts[_of_session(weights, total, session) if session else self._next(weights, total)]

    def _next(self, weights: Mapping[str, float], total: float) -> str:
        """Smooth weighted round robin, as `Versions` has it."""
        for version, weight in weights.items():
            self._debts[version] = self._debts.get(version, 0.0) + weight / total
        chosen = max(weights, key=lambda version: self._debts[version])
        self._debts[chosen] -= 1.0
        return chosen


def _of_session(weights: Mapping[str, float], total: float, session: str) -> str:
    place = xxh3_64_intdigest(session.encode("utf-8", "surrogatepass")) / 2**64 * total
    chosen = ""
    for version, weight in weights.items():
        if weight:
            chosen = version
        if place < weight:
            break
        place -= weight
    return chosen
