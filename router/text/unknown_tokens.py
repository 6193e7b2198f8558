"""Tokens of a tokenizer that the model does not have: they were added, and its embedding was not enlarged."""

from __future__ import annotations

from collections.abc import Mapping

MAX_NAMED_TOKENS = 3


class UnknownTokenError(ValueError):
    """A prompt has a token that the model does not have."""

    def __init__(self, text: str, token_id: int, vocab_size: int) -> None:
        super().__init__(f"token {text!r} has the id {token_id}, and the model's vocabulary has {vocab_size} tokens")


def unknown_tokens(token_ids: Mapping[str, int], vocab_size: int) -> dict[int, str]:
    """The text of each token that is beyond the model, by its id. `token_ids` are all of the tokenizer's."""
    return {token_id: text for text, token_id in token_ids.items() if token_id >= vocab_size}


def warning_about(unknown: Mapping[int, str], vocab_size: int) -> str:
    """One sentence for the start; `unknown` is not empty."""
    named = ", ".join(f"{unknown[token_id]!r} ({token_id})" for token_id in sorted(unknown)[:MAX_NAMED_TOKENS])
    more = ", ..." if len(unknown) > MAX_NAMED_TOKENS else ""
    count = "1 token" if len(unknown) == 1 else f"{len(unknown)} tokens"
    return (
        f"the tokenizer has {count} beyond the model, whose vocab_size is {vocab_size} in config.json: "
        f"{named}{more}; prompts with such tokens are refused"
    )
