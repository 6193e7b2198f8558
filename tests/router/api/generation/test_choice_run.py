"""A choice whose router is killed goes on at the next one as if nothing had been."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from functools import partial

import pytest
from tokenizers import Tokenizer, models

from slipstream.router.api.exchange_context import ExchangeContext
from slipstream.router.api.generation.answer.answer_format import AnswerHead
from slipstream.router.api.generation.answer.choice import Choice, ChoiceRun
from slipstream.router.api.generation.answer.output import TokenEntry
from slipstream.router.api.generation.answer.output_text import OutputText
from slipstream.router.api.generation.answer.token_names import LogprobNames
from slipstream.router.api.generation.answer.token_report import TokenReport
from slipstream.router.api.held_exchange import NullSink
from slipstream.router.api.openai.answer.completion_format import CompletionFormat
from slipstream.router.http.exchange import Exchange
from slipstream.router.http.failover.journal import AnswerPhase, Journal
from slipstream.router.http.failover.stream_checkpoint import JournalCheckpoint
from slipstream.router.http.reader import Request
from slipstream.router.observability.front_counts import ModelCounts
from slipstream.router.protocol.generation import EarlyEnd, GenerationFinish, Usage
from slipstream.router.protocol.messages import FinishReason, TokenLogprob, unpack_ids
from slipstream.router.requests.history import RequestRecord, Timeline
from slipstream.router.requests.stream import GenerationStream, Handouts
from slipstream.router.text.detokenizer import PieceTable

TEXT = "Grüße 🙂, und Schluss"
OUTPUT = tuple(TEXT.encode())  # each byte is a token
PREFIX = "Say: "
REQUEST = Request("POST", "/", "", {}, b"", keep_alive=True, http10=False)


def byte_pieces() -> PieceTable:
    names = {f"<0x{byte:02X}>": byte for byte in range(256)}
    return PieceTable(Tokenizer(models.BPE(vocab=names, merges=[])), {"type": "ByteFallback"}, ())


PIECES = byte_pieces()


@dataclass
class Client:
    """What came of the answer, over all the routers that gave it, and the journal of its connection."""

    streams: bool
    stops: tuple[str, ...] = ()
    has_logprobs: bool = False
    reason: FinishReason = "length"
    stop_token_id: int | None = None
    min_tokens: int = 0
    text: str = ""
    num_tokens: int = 0
    ends: list[EarlyEnd] = field(default_factory=list)
    entries: list[TokenEntry] = field(default_factory=list)
    has_ids: bool = False
    ids: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.journal, self._fd = Journal.create()
        self.journal.received(b"request")
        self.journal.begun()

    async def serve(self, kill_after: int) -> bool:
        """One router gives the answer, and is killed after so many tokens (of those that it has not taken over).
        Returns whether it came to the end."""
        journal = self.journal = Journal(os.dup(self._fd))
        assert not journal.is_spoiled
        is_first = not journal.num_lives and not unpack_ids(journal.unfinished().tokens.get(0, b""))
        before = None if is_first else journal.unfinished()
        num_known = 0 if before is None else len(unpack_ids(before.tokens.get(0, b"")))
        if not self.streams:
            self.text, self.entries, self.ids = "", [], []  # of which the client got nothing

        def send(text: str, logprobs: list[TokenEntry]) -> None:
            self.text += text
            self.entries += logprobs
            self.ids += form._new_ids.pop(0, [])
            if self.streams:
                journal.sent(text.encode(), AnswerPhase.STREAMING)

        def cancel(request_id: str, reason: EarlyEnd) -> None:
            self.ends.append(reason)
            stream.end(GenerationFinish(reason, Usage(1, 0, 0)))

        stream = GenerationStream(RequestRecord("r", "", 0, 1, Timeline(0.0)), cancel, Handouts())
        checkpoint = JournalCheckpoint(journal, before)
        exchange = Exchange(
            REQUEST, NullSink(), ExchangeContext(checkpoint), head_sent=before is not None and before.head_sent
        )
        output = OutputText(PIECES, self.stops, include_stop=False, min_tokens=self.min_tokens)
        choice = Choice(0, stream, output, ModelCounts().begin(0.0), prefix=PREFIX)
        report = TokenReport((b"",), returns_ids=self.has_ids)
        form = CompletionFormat(AnswerHead("cmpl-1", 0, "m"), LogprobNames(PIECES), self.has_logprobs, False, report)
        if self.has_ids:
            choice.add_ids = partial(form.add_ids, 0)
        run = ChoiceRun(choice, exchange, form, checkpoint if self.streams else checkpoint.of_whole_answer(), send)
        running = asyncio.create_task(run.to_end())
        await asyncio.sleep(0)
        for index, token_id in enumerate(OUTPUT[num_known:][:kill_after], num_known + 1):
            if running.done():
                break
            stream.deliver((token_id,), (TokenLogprob(-0.5),) if self.has_logprobs else ())
            if index == len(OUTPUT):
                stream.end(GenerationFinish(self.reason, Usage(1, index, 0), self.stop_token_id))
            for _ in range(3):
                await asyncio.sleep(0)
        if not running.done():
            running.cancel()
            return False
        held_back = await running
        self.text += held_back.text
        self.entries += held_back.logprobs
        self.ids += form._new_ids.pop(0, [])
        self.num_tokens = output.num_tokens
        return True

    def close(self) -> None:
        os.close(self._fd)


def answered(client: Client, kills: list[int]) -> Client:
    """After routers that were killed after so many tokens each, and one that lives."""

    async def main() -> None:
        for kill_after in (*kills, len(OUTPUT)):
            if await client.serve(kill_after):
                return

    asyncio.run(main())
    client.close()
    return client


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("stops", [(), (", und",), ("nichts", "Schlussstrich")], ids=["", "stops", "may stop"])
def test_wherever_its_routers_are_killed_a_choice_has_the_same_text_and_the_same_number_of_tokens(
    streams: bool, stops: tuple[str, ...]
) -> None:
    undisturbed = answered(Client(streams, stops), [])
    assert undisturbed.text == PREFIX + (TEXT.partition(", und")[0] if ", und" in stops else TEXT)
    for first in range(len(OUTPUT)):
        for kills in ([first], [first, 1], [first, 4, 2]):
            client = answered(Client(streams, stops), kills)
            assert (client.text, client.num_tokens) == (undisturbed.text, undisturbed.num_tokens), kills
            assert client.ends[-1:] == undisturbed.ends


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("stops", [(), (", und",)], ids=["", "stops"])
def test_wherever_its_routers_are_killed_each_id_is_sent_once(streams: bool, stops: tuple[str, ...]) -> None:
    undisturbed = answered(Client(streams, stops, has_ids=True), [])
    assert bytes(undisturbed.ids).decode().startswith("Grüße 🙂, und" if stops else TEXT)
    for first in range(len(OUTPUT)):
        for kills in ([first], [first, 4, 2]):
            client = answered(Client(streams, stops, has_ids=True), kills)
            assert (client.text, client.ids) == (undisturbed.text, undisturbed.ids), kills


@pytest.mark.parametrize("streams", [True, False], ids=["stream", "whole"])
def test_wherever_its_router_is_killed_a_choice_has_at_least_min_tokens(streams: bool) -> None:
    stops, min_tokens = ("s", ", u"), len("Grüße 🙂, u".encode())
    undisturbed = answered(Client(streams, stops, min_tokens=min_tokens), [])
    assert undisturbed.text == PREFIX + "Grüße 🙂, und Schlu"
    for kill_after in range(len(OUTPUT)):
        client = answered(Client(streams, stops, min_tokens=min_tokens), [kill_after])
        assert (client.text, client.num_tokens) == (undisturbed.text, undisturbed.num_tokens)


def test_a_choice_whose_stop_string_was_there_already_ends_without_another_token() -> None:
    client = Client(False, (", und",))
    num_tokens = len(TEXT.partition(" Schluss")[0].encode())

    async def main() -> None:
        journal_notes = JournalCheckpoint(client.journal).of_whole_answer()
        for token_id in OUTPUT[:num_tokens]:
            journal_notes.got(0, [(token_id, None)], "v1")
        assert await client.serve(0)

    asyncio.run(main())
    client.close()
    assert (client.text, client.num_tokens, client.ends) == ("Say: Grüße 🙂", num_tokens, ["stop"])


def test_a_hidden_stop_token_is_computed_again() -> None:
    """Whether it is shown depends on why it was the last one, which is not noted."""
    for kills in ([], [len(OUTPUT) - 1]):
        client = answered(Client(False, reason="stop", stop_token_id=OUTPUT[-1]), kills)
        assert (client.text, client.num_tokens) == (PREFIX + TEXT[:-1], len(OUTPUT))


@pytest.mark.parametrize("stops", [(), ("und nie",)], ids=["", "a stop string may begin"])
def test_a_whole_answer_with_logprobs_is_computed_again(stops: tuple[str, ...]) -> None:
    undisturbed = answered(Client(False, stops, has_logprobs=True), [])
    assert len(undisturbed.entries) == len(OUTPUT)
    for kill_after in range(len(OUTPUT)):
        client = answered(Client(False, stops, has_logprobs=True), [kill_after])
        assert (client.text, client.entries) == (undisturbed.text, undisturbed.entries)
