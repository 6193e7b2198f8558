"""What an answer leaves for the next router, which may have to go on with it, and what the previous one left."""

from __future__ import annotations

import time
from typing import Protocol

from slipstream.router.http.failover.journal import Identity, Journal, UnfinishedAnswer
from slipstream.router.process.random_bytes import random_bytes
from slipstream.router.protocol.generation import Delta, Resumed
from slipstream.router.protocol.messages import pack_ids
from slipstream.router.protocol.model_id import ModelId

NUMBER_BYTES, SEED_BYTES = 16, 8
SEED_MASK = 2**63 - 1


def new_identity(model: ModelId) -> Identity:
    """A random number and seed, and the time."""
    bits = random_bytes(NUMBER_BYTES + SEED_BYTES)
    number, seed = bits[:NUMBER_BYTES], bits[NUMBER_BYTES:]
    return Identity(int.from_bytes(number), int(time.time()), int.from_bytes(seed) & SEED_MASK, model)


class StreamCheckpoint(Protocol):
    """What an answer notes while it is given, and what the previous router had noted of it. Tokens and ends count as
    sent to the client with the next bytes that leave."""

    def model(self) -> ModelId | None:
        """The model that the previous router had chosen for the answer; None: none was chosen yet."""

    def identity(self, model: ModelId) -> Identity:
        """That of the answer: the one that it had before, or a new one for an answer of this model."""

    def resumed(self, choice: int) -> Resumed | None:
        """How far a choice had come at the previous router; None: the answer is new."""

    def has_ended(self, choice: int) -> bool:
        """The client has all of the choice. It is computed to its end again, for the usage, and not sent."""

    def got(self, choice: int, delta: Delta, version: str) -> None:
        """A choice got tokens, from this version of the model."""

    def ended(self, choice: int) -> None:
        """With what is sent next, the client has all of the choice."""

    def spoil(self) -> None:
        """What comes now cannot be noted: no other router can go on with this answer."""

    def of_whole_answer(self) -> StreamCheckpoint:
        """The checkpoint of an answer that is sent at its end: what is noted counts at once."""


class NoCheckpoint:
    """The checkpoint of an answer that ends with its router: nothing is noted."""

    def model(self) -> ModelId | None:
        return None

    def identity(self, model: ModelId) -> Identity:
        return new_identity(model)

    def resumed(self, choice: int) -> Resumed | None:
        return None

    def has_ended(self, choice: int) -> bool:
        return False

    def got(self, choice: int, delta: Delta, version: str) -> None:
        pass

    def ended(self, choice: int) -> None:
        pass

    def spoil(self) -> None:
        pass

    def of_whole_answer(self) -> StreamCheckpoint:
        return self


class JournalCheckpoint:
    """Notes in the journal of the answer's connection. `before` is what the previous router had noted."""

    def __init__(self, journal: Journal, before: UnfinishedAnswer | None = None) -> None:
        self._journal = journal
        self._before = before
        self._version = before.version if before is not None else ""

    def model(self) -> ModelId | None:
        before = self._before
        return None if before is None or before.identity is None else before.identity.model

    def identity(self, model: ModelId) -> Identity:
        if self._before is not None and self._before.identity is not None:
            return self._before.identity
        identity = new_identity(model)
        self._journal.named(identity)
        return identity

    def resumed(self, choice: int) -> Resumed | None:
        if self._before is None:
            return None
        return Resumed(self._before.tokens.get(choice, b""), self._before.version)

    def has_ended(self, choice: int) -> bool:
        return self._before is not None and choice in self._before.ended

    def got(self, choice: int, delta: Delta, version: str) -> None:
        if version != self._version:
            self._version = version
            self._journal.served_by(version)
        if len(delta) == 1:
            self._journal.token(choice, delta[0][0])
        else:
            self._journal.tokens(choice, pack_ids([token_id for token_id, _ in delta]))

    def ended(self, choice: int) -> None:
        self._journal.ended(choice)

    def spoil(self) -> None:
        self._journal.spoil()

    def of_whole_answer(self) -> StreamCheckpoint:
        return WholeAnswerCheckpoint(self._journal, self._before)


class WholeAnswerCheckpoint(JournalCheckpoint):
    """Of an answer that is sent at its end. If it has logprobs, which are not noted, it is computed again."""

    def got(self, choice: int, delta: Delta, version: str) -> None:
        _, logprob = delta[0]
        if logprob is None:
            super().got(choice, delta, version)
            self._journal.commit()

    def spoil(self) -> None:
        """Only logprobs that wait for their text spoil the notes of an answer, and of this one there are none then."""


NO_CHECKPOINT = NoCheckpoint()
