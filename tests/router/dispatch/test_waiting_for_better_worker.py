"""The dispatcher with the default policy: waiting for a better worker, changing its mind, learning."""

from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId
from slipstream.router.config.router_config import DispatchConfig
from slipstream.router.dispatch.dispatcher import Dispatcher
from slipstream.router.dispatch.table.actions import Send
from slipstream.router.protocol.generation import GenerateRequest
from slipstream.router.protocol.messages import (
    Credits,
    Generate,
    HandedOff,
    Prefill,
    Reserve,
    Reserved,
    SamplingParams,
    Start,
    StepOutput,
    StepTime,
    StepTimes,
    TokenChunk,
    pack_ids,
)
from tests.support.router.placed_workers import worker


class Played:
    """A dispatcher and what it said; workers say what the test says."""

    def __init__(self, **config):
        self.dispatcher = Dispatcher(DispatchConfig(**config))
        self.acked = {}

    def join(self, role, name, *, free=(64, 4096, 16384), step_s=0.01, now=0.0, **fields):
        hello = worker(role, name, **fields).hello
        self.dispatcher.worker_joined(hello, now)
        samples = []
        for n in range(30):
            tokens = 50 * (1 + n)
            samples.append(StepTime(0, 0, 1 + n % 8, 100 * (1 + n % 8), step_s))
            samples.append(StepTime(tokens, tokens // 2, 0, 0, step_s / 2 + tokens * 1e-4))
        self.say(name, StepTimes(tuple(samples)), now)
        self.say(name, Credits(0, *free), now)

    def say(self, name, message, now):
        return self.sent(self.dispatcher.worker_message(PeerId(name, 1), message, now))

    def submit(self, request_id, num_tokens, now, max_tokens=100, line=None):
        prompt = pack_ids(range(num_tokens))
        sampling = SamplingParams(max_tokens=max_tokens)
        asked = GenerateRequest(request_id, prompt, sampling, local_prefill_max_tokens=line)
        return self.sent(self.dispatcher.submit(asked, now))

    def sent(self, actions):
        self.dispatcher.check_integrity()
        return [(a.worker.name, a.message) for a in actions if isinstance(a, Send)]


def chunk(request_id, index, *, reason=None, cached=0):
    return StepOutput((TokenChunk(request_id, 0, index, (7,), (), reason, None, cached),))


def test_who_waits_for_a_better_worker_takes_what_there_is_when_the_time_is_up():
    played = Played()
    played.join("decode", "fast", slots=1, free=(1, 4096, 16384))
    [(name, _)] = played.submit("first", 50, 0.0, max_tokens=10)
    assert name == "fast"
    played.join("decode", "slow", step_s=0.3, now=0.1)
    assert played.submit("second", 50, 0.2) == [], "fast is full, and worth waiting for"
    wake_s = played.dispatcher.next_deadline()
    assert wake_s is not None
    assert 0.2 < wake_s < 100
    [(name, message)] = played.sent(played.dispatcher.tick(wake_s))
    assert name == "slow"
    assert isinstance(message, Generate)


def test_who_waits_for_a_better_worker_gets_it_when_it_is_free():
    played = Played()
    played.join("decode", "fast", slots=1, free=(1, 4096, 16384))
    played.submit("first", 50, 0.0, max_tokens=10)
    played.join("decode", "slow", step_s=0.3, now=0.1)
    assert played.submit("second", 50, 0.2) == []
    played.say("fast", chunk("first", 0, reason="stop"), 0.25)
    [(name, message)] = played.say("fast", Credits(1, 1, 4096, 16384), 0.26)
    assert (name, message.request.request_id) == ("fast", "second")


def test_one_that_waits_by_choice_holds_up_nobody():
    played = Played()
    played.join("decode", "fast", slots=1, free=(1, 4096, 16384))
    played.submit("first", 50, 0.0, max_tokens=10)
    played.join("decode", "slow", step_s=0.02, now=0.1)
    for number in range(40):
        played.submit(f"r{number}", 50, 0.2 + number / 100)
    placed = [played.dispatcher.history.get(f"r{number}").decisions for number in range(40)]
    assert any(placed), "with so many before them, waiting is not worth it any more"


def busy(played, streams=12):
    """Streams on the decode worker."""
    for number in range(streams):
        played.submit(f"s{number}", 20, 0.0, line=100)
        played.say("d", chunk(f"s{number}", 0), 0.01)
    played.say("d", Credits(streams, 64 - streams, 4000, 16384), 0.02)


def test_a_reservation_that_finds_more_cached_than_was_known_is_used_for_local_prefill():
    played = Played()
    played.join("decode", "d")
    played.join("prefill", "p")
    busy(played)
    [(name, reserve)] = played.submit("long", 3000, 1.0)
    assert (name, type(reserve)) == ("d", Reserve)
    ticket = HandoffTicket(1, PeerId("d", 1), (), 0, 10, 8, 2, 2, 64)
    [(name, message)] = played.say("d", Reserved("long", 0, 2992, ticket), 1.01)
    assert (name, type(message)) == ("d", Generate)
    record = played.dispatcher.history.get("long")
    assert [d.reason for d in record.decisions] == ["cheaper_remote", "cached_prefix"]
    assert record.decisions[1].predicted_ttft_s > 0


def test_a_remote_prefill_teaches_what_reservation_prefill_and_hand_off_took():
    played = Played()
    played.join("decode", "d")
    played.join("prefill", "p")
    busy(played)
    played.submit("long", 3000, 1.0)
    ticket = HandoffTicket(1, PeerId("d", 1), (), 0, 188, 8, 2, 2, 64)
    [(name, message)] = played.say("d", Reserved("long", 0, 0, ticket), 1.02)
    assert (name, type(message)) == ("p", Prefill)
    [(name, message)] = played.say("p", chunk("long", 0), 1.5)
    assert (name, type(message)) == ("d", Start)
    played.say("d", HandedOff("long", 0, 1000, 0.4), 1.54)
    played.say("d", chunk("long", 1), 1.56)
    [decode] = [w for w in played.dispatcher.snapshot(2.0).workers if w.peer.name == "d"]
    assert dict(decode.predicted_s)["transfer_100_pages"] > 0.1
    played.submit("next", 3000, 2.0)
    chosen = played.dispatcher.history.get("next").decisions[0].candidates[0]
    terms = {term.name: term.value for term in chosen.terms}
    assert 0.005 < terms["reserve"] < 0.05
    assert terms["handoff"] > 0.01


def test_finished_answers_are_learned_and_forecasts_scored():
    played = Played()
    played.join("decode", "d")
    for number in range(40):
        now = float(number)
        played.submit(f"r{number}", 20, now, max_tokens=1000)
        for index in range(4):
            played.say("d", chunk(f"r{number}", index), now)
        played.say("d", chunk(f"r{number}", 4, reason="stop"), now)
        played.say("d", Credits(number + 1, 64, 4096, 16384), now)
    assert played.dispatcher.snapshot(100.0).output_forecasts.num_scored == 40
    played.submit("last", 20, 100.0, max_tokens=1000)
    predicted = played.dispatcher.history.get("last").decisions[0].predicted_output_tokens
    assert 3 <= predicted <= 20


def test_nothing_is_left_on_workers_after_all_is_over():
    played = Played()
    played.join("decode", "d")
    played.join("prefill", "p")
    busy(played, 5)
    played.submit("long", 3000, 1.0)
    for request_id in ("long", *(f"s{number}" for number in range(5))):
        played.sent(played.dispatcher.cancel(request_id, 2.0))
    assert played.dispatcher.num_requests == 0
    assert played.dispatcher.next_deadline() is None
