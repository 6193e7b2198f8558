"""Which ensembles were asked for, and the models that they are made of."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from slipstream.router.model_repository.model_draft import ModelDraft


class KnownEnsembles:
    """Each as it was read last, from its load until it is unloaded by name: also while a model of it is missing."""

    def __init__(self) -> None:
        self._drafts: dict[str, ModelDraft] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._drafts

    def add(self, draft: ModelDraft) -> None:
        self._drafts[draft.name] = draft

    def forget(self, name: str) -> ModelDraft | None:
        return self._drafts.pop(name, None)

    def draft_of(self, name: str) -> ModelDraft:
        return self._drafts[name]

    def of(self, model: str) -> list[str]:
        """Those that have a model as a step."""
        return [name for name, draft in self._drafts.items() if model in draft.step_models]

    def only_of(self, ensemble: ModelDraft, named: Collection[str]) -> list[str]:
        """The models of one that is no more, which neither another one needs nor anybody has `named`."""
        return [step for step in ensemble.step_models if step not in named and not self.of(step)]

    def circle_of(self, ensemble: str) -> str:
        return circle_of(ensemble, {name: draft.step_models for name, draft in self._drafts.items()})


def circle_of(ensemble: str, steps: Mapping[str, Sequence[str]]) -> str:
    """Of an ensemble that is a step of itself, perhaps of one of its steps: the way there, as Triton words it. Else "".
    `steps` are the models of each ensemble."""
    ahead, seen = [ensemble], set[str]()
    while ahead:
        current = ahead.pop()
        for step in steps.get(current, ()):
            if step == ensemble:
                return f"circular dependency between ensembles: {ensemble} -> ... -> {current} -> {ensemble}"
            if step not in seen:
                seen.add(step)
                ahead.append(step)
    return ""
