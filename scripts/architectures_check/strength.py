"""Whether a model's output would show a mistake: it must depend on what stands far back, on the order of tokens, and
must not repeat itself."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from .reference import Reference

EARLY = 2  # the position of the token that is changed
MIN_KINDS = 2  # different tokens among those that follow a prompt
MIN_KINDS_OF_ALL = 10  # the same over all prompts


@dataclass(frozen=True, slots=True)
class Strength:
    """`num_kinds` is the fewest different tokens that one of the first prompts is followed by, `num_kinds_of_all` the
    number that all prompts are; the others count the first prompts whose continuation changes if a token far back is
    changed, or if two are swapped."""

    num_prompts: int
    num_kinds: int
    num_kinds_of_all: int
    early_token: int
    swapped: int

    @property
    def is_strong(self) -> bool:
        return self.rank[0] == 3

    @property
    def rank(self) -> tuple[int, int, int]:
        """The larger, the stronger."""
        half = self.num_prompts // 2
        changes = (self.early_token >= half) + (self.swapped >= half)
        varied = self.num_kinds >= MIN_KINDS and self.num_kinds_of_all >= MIN_KINDS_OF_ALL
        return changes + varied, self.early_token + self.swapped, self.num_kinds_of_all

    def as_json(self) -> dict[str, int]:
        return asdict(self)


def strength(reference: Reference) -> Strength:
    early = swapped = 0
    kinds = []
    prompts = reference.prompts[:4]
    for prompt, tokens in zip(prompts, reference.tokens, strict=False):
        kinds.append(len(set(tokens)))
        # Within what windows one after the other can see, but beyond a single window.
        near = max(EARLY, len(prompt) - 30)
        changed = [*prompt[:near], (prompt[near] + 101) % 256, *prompt[near + 1 :]]
        early += reference.generate(changed) != tokens
        far = max(near - 7, 0)
        exchanged = list(prompt)
        exchanged[far], exchanged[near] = prompt[near], prompt[far]
        swapped += reference.generate(exchanged) != tokens
    of_all = {token for tokens in reference.tokens for token in tokens}
    return Strength(len(prompts), min(kinds), len(of_all), early, swapped)
