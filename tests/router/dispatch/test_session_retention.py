"""What workers are told about the pages of conversations that pause for a tool."""

import pytest

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.config.router_config import DispatchConfig, RetentionConfig
from slipstream.router.dispatch.table.actions import Send
from slipstream.router.placement.retention.paused_sessions import GONE_S
from slipstream.router.placement.retention.session_retention import GRACE_S
from slipstream.router.protocol.generation import GenerateRequest, Retention
from slipstream.router.protocol.messages import Credits, Generate, Retain, SamplingParams
from tests.support.router.dispatcher_lab import Lab

D, E = PeerId("d", 1), PeerId("e", 1)
PROMPT = list(range(100))
MAY_COME_BACK = Retention()


class AgentLab(Lab):
    """One conversation, turn by turn."""

    def turn(self, request_id, prompt=PROMPT, retention=MAY_COME_BACK, **fields):
        """A request is placed. Returns the hint of its Generate, and what other messages were sent."""
        request = GenerateRequest(request_id, prompt, SamplingParams(10), retention=retention, **fields)
        self.do(self.dispatcher.submit(request, self.now))
        actions = [action for action in self.take() if isinstance(action, Send)]
        [generate] = [action for action in actions if isinstance(action.message, Generate)]
        self.at, self.seq = generate.worker, generate.message.seq
        return generate.message.request.retention, [action for action in actions if action is not generate]

    def answer(self, request_id, *tools):
        """It ends, and its answer is read. Returns the Retain that was sent, or None."""
        self.chunk(self.at, request_id, 0, 5, finish="stop")
        self.say(self.at, Credits(self.seq, 4, 100, 1000))
        self.take()
        self.do(self.dispatcher.turn_ended(request_id, tools, self.now))
        sent = self.sent()
        assert len(sent) <= 1
        return sent[0][2] if sent else None


@pytest.fixture
def lab():
    lab = AgentLab(DispatchConfig())
    lab.join(D, "decode", version=6)
    lab.take()
    return lab


def test_a_plain_request_gets_no_hint_and_is_not_followed(lab):
    hint, others = lab.turn("r", retention=None)
    assert (hint, others) == (None, [])
    assert lab.answer("r", "read") is None


def test_pages_are_kept_for_a_moment_until_the_answer_was_read(lab):
    hint, _ = lab.turn("r", tenant="t")
    assert (hint.keep_s, hint.tenant, hint.is_pinned, hint.continues) == (GRACE_S, "t", False, "")
    told = lab.answer("r", "read")
    assert isinstance(told, Retain)
    assert told.request_id == "r"
    assert told.retention.keep_s > GRACE_S
    assert told.retention.value > 0
    kept = lab.dispatcher.history.get("r").kept
    assert (kept.tool, kept.keep_s) == ("read", told.retention.keep_s)


def test_the_pause_of_a_tool_is_learned_from_the_next_request_of_the_conversation(lab):
    prompt, hint = list(PROMPT), None
    for number in range(60):
        hint, _ = lab.turn(f"r{number}", prompt)
        if number:
            assert hint.continues == f"r{number - 1}"
        told = lab.answer(f"r{number}", "read")
        lab.now += 2.0
        prompt = [*prompt, *range(number * 20, number * 20 + 20)]
    assert 2.0 <= told.retention.keep_s <= 8.0
    assert lab.dispatcher.history.get("r59").continues == "r58"
    events = lab.dispatcher.snapshot(lab.now).totals.sessions
    assert (events["returned"], events["kept"]) == (59, 60)


def test_a_conversation_that_is_gone_counts_as_such(lab):
    lab.turn("r")
    lab.answer("r", "read")
    lab.now += GONE_S + 1
    lab.turn("s", list(range(500, 600)))
    assert lab.dispatcher.snapshot(lab.now).totals.sessions["gone"] == 1


def test_tools_after_which_few_come_back_are_not_waited_for(lab):
    for number in range(40):
        lab.turn(f"r{number}", list(range(number * 200, number * 200 + 100)))
        told = lab.answer(f"r{number}", "submit")
        lab.now += GONE_S + 1
    assert told.retention.keep_s == 0.0


def test_of_several_tools_the_slowest_is_waited_for(lab):
    for number, pause_s in enumerate([0.1, 60.0] * 30):
        lab.turn(f"r{number}", list(range(number * 200, number * 200 + 100)))
        lab.answer(f"r{number}", "build" if pause_s > 1 else "read")
        lab.now += pause_s
        lab.turn(f"s{number}", list(range(number * 200, number * 200 + 120)))
        lab.answer(f"s{number}")
    lab.turn("r")
    assert lab.answer("r", "read", "build").retention.keep_s > 40.0


def test_what_a_client_asks_to_keep_is_pinned_within_the_limit(lab):
    hint, _ = lab.turn("r", retention=Retention(300.0))
    assert (hint.keep_s, hint.is_pinned) == (300.0, True)
    assert lab.answer("r", "read") is None
    hint, _ = lab.turn("s", retention=Retention(1e6))
    assert hint.keep_s == DispatchConfig().retention.max_pin_s


def test_a_worker_that_the_conversation_has_left_need_not_keep_its_pages(lab):
    lab.turn("r")
    lab.answer("r", "read")
    lab.join(E, "decode", version=6)
    lab.say(D, Credits(lab.seq, 0, 0, 0))
    lab.take()
    hint, others = lab.turn("s", [*PROMPT, *range(30)])
    assert lab.at == E
    assert hint.continues == ""
    _, told = others
    assert (told.worker, told.message.request_id, told.message.retention.keep_s) == (D, "r", 0.0)


def test_pages_that_a_waiting_request_goes_on_from_are_pinned_when_it_comes(lab):
    lab.turn("r")
    guessed = lab.answer("r", "read").retention
    _, [told] = lab.turn("s", [*PROMPT, *range(30)])
    assert (told.worker, told.message.request_id, told.message.retention.is_pinned) == (D, "r", True)
    assert told.message.retention.value > guessed.value


def test_workers_that_do_not_know_hints_are_told_nothing():
    lab = AgentLab(DispatchConfig())
    lab.join(D, "decode", version=5)
    lab.take()
    lab.turn("r")
    assert lab.answer("r", "read") is None


def test_nothing_is_followed_where_it_is_switched_off():
    lab = AgentLab(DispatchConfig(retention=RetentionConfig(enabled=False)))
    lab.join(D, "decode", version=6)
    lab.take()
    hint, _ = lab.turn("r")
    assert hint is None
    assert lab.answer("r", "read") is None


def test_a_worker_that_is_lost_meanwhile_is_told_nothing(lab):
    lab.turn("r")
    lab.chunk(D, "r", 0, 5, finish="stop")
    lab.do(lab.dispatcher.worker_lost(D, lab.now))
    lab.take()
    lab.do(lab.dispatcher.turn_ended("r", ["read"], lab.now))
    assert lab.sent() == []


def test_a_request_whose_client_left_is_not_waited_for(lab):
    lab.turn("r")
    lab.do(lab.dispatcher.cancel("r", lab.now))
    lab.take()
    lab.do(lab.dispatcher.turn_ended("r", ["read"], lab.now))
    assert lab.sent() == []
