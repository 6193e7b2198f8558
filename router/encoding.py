"""Text to token ids without holding up anybody else."""

from __future__ import annotations

import tokenizers

from slipstream.router.messages import pack_ids


def encode_unlocked(tokenizer: tokenizers.Tokenizer, text: str, *, add_special_tokens: bool) -> bytes:
    """Token ids of `text`, packed, the same as those of `tokenizer.encode`.

    `encode` keeps the interpreter's lock until it is done, so that a long text would stop the event loop even from
    another thread. Only the library's batch calls give the lock up.
    """
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    return pack_ids(encoding.ids)
