"""The tokens that a request has produced so far, in order, however late or often they arrive."""

from __future__ import annotations

from array import array

from slipstream.router.protocol.messages import TokenChunk

# How many chunks may wait for a missing one before them. The tokens of one request come over at most two connections,
# each of them in order, so if more than a few wait, the missing one will never come.
MAX_EARLY_CHUNKS = 64
MAX_TOKEN_ID = 2**31 - 1


class OutputError(Exception):
    """A worker sent tokens that cannot belong to this output."""


class OutputLog:
    """Accepts chunks by output index: tokens that are known already are dropped, those that come too early wait."""

    def __init__(self, max_tokens: int, packed_ids: bytes = b"") -> None:
        """`packed_ids` are the tokens that the output begins with."""
        self._max_tokens = max_tokens
        self.ids = array("i", packed_ids)
        self._early: dict[int, TokenChunk] = {}

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def packed_ids(self) -> bytes:
        """All tokens as packed int32."""
        return self.ids.tobytes()

    @property
    def is_full(self) -> bool:
        return len(self.ids) >= self._max_tokens

    def drop_early(self) -> None:
        """Forgets the chunks that wait for a gap to close. To be called when an attempt ends."""
        self._early.clear()

    def add(self, chunk: TokenChunk) -> list[TokenChunk]:
        """Adds a chunk. Returns the chunks that now follow without a gap, in order and cut to their new tokens.

        A chunk with a finish reason may have no tokens. Tokens beyond max_tokens are cut off, and the cut chunk
        finishes with "length". Raises OutputError for a token id (of a top logprob too) that is negative or outside
        int32, for logprobs that do not match the tokens, for a negative number of cached tokens, and when too many
        chunks wait.
        """
        if chunk.num_cached_tokens < 0:
            raise OutputError(f"{chunk.num_cached_tokens} tokens of the prompt are said to be cached")
        ids, token_ids = self.ids, chunk.token_ids
        is_next = chunk.index == len(ids) < self._max_tokens and not self._early
        if is_next and len(token_ids) == 1 and 0 <= token_ids[0] <= MAX_TOKEN_ID and not chunk.logprobs:
            ids.append(token_ids[0])  # nearly always
            return [chunk]
        if chunk.logprobs and len(chunk.logprobs) != len(chunk.token_ids):
            raise OutputError(f"{len(chunk.logprobs)} logprobs came with {len(chunk.token_ids)} tokens")
        if any(not 0 <= token_id <= MAX_TOKEN_ID for one in chunk.logprobs for token_id, _ in one.top):
            raise OutputError(f"the top logprobs have an id of no token: {chunk.logprobs!r:.80}")
        if chunk.index > len(self.ids):
            _packed(chunk)  # checked now: failing only in its turn would lose the tokens before it
            if len(self._early) >= MAX_EARLY_CHUNKS:
                raise OutputError(f"token {len(self.ids)} is missing and {MAX_EARLY_CHUNKS} chunks wait for it")
            known = self._early.get(chunk.index)
            if known is None or len(known.token_ids) < len(chunk.token_ids):
                self._early[chunk.index] = chunk
            return []
        accepted = self._accept(chunk)
        ready = [accepted] if accepted is not None else []
        while self._early and (first := min(self._early)) <= len(self.ids):
            accepted = self._accept(self._early.pop(first))
            if accepted is not None:
                ready.append(accepted)
        return ready

    def _accept(self, chunk: TokenChunk) -> TokenChunk | None:
        known = len(self.ids) - chunk.index
        room = self._max_tokens - len(self.ids)
        num_new = len(chunk.token_ids) - known
        if num_new < 0 or (num_new == 0 and chunk.finish_reason is None):
            return None
        if known or num_new > room:
            chunk = chunk._replace(
                index=chunk.index + known,
                token_ids=chunk.token_ids[known : known + room],
                logprobs=chunk.logprobs[known : known + room],
                finish_reason="length" if num_new > room else chunk.finish_reason,
                stop_token_id=None if num_new > room else chunk.stop_token_id,
            )
        self.ids.extend(_packed(chunk))
        return chunk


def _packed(chunk: TokenChunk) -> array[int]:
    """The chunk's tokens. Raises OutputError for a value that is not a token id."""
    # No tokenizer accepts a negative id, so a later reader could only fail.
    if chunk.token_ids and min(chunk.token_ids) < 0:
        raise OutputError(f"a token id is not a non-negative int32: {chunk.token_ids!r:.80}")
    try:
        return array("i", chunk.token_ids)
    except OverflowError as error:
        raise OutputError(f"a token id is not an int32: {chunk.token_ids!r:.80}") from error
