"""Who is turned away at once, and what deadlines of one's own do."""

import pytest

from slipstream.kv_transfer.api.ticket import PeerId, TransferAddress
from slipstream.router.config.router_config import DispatchConfig, SloConfig
from slipstream.router.dispatch.dispatcher import Dispatcher
from slipstream.router.dispatch.queue.placement_rate import LATEST_SAMPLES, MIN_SAMPLES, UNKNOWN_RETRY_S, PlacementRate
from slipstream.router.dispatch.table.actions import Finish
from slipstream.router.dispatch.table.request_table import RequestTable
from slipstream.router.dispatch.table.versions import Versions
from slipstream.router.placement.prefix.index import PrefixIndex
from slipstream.router.placement.retention.session_retention import SessionRetention
from slipstream.router.protocol.generation import (
    AdmissionError,
    DeadlineUnreachableError,
    GenerateRequest,
    Levels,
    QueueFullError,
    Slo,
    TenantQueueFullError,
)
from slipstream.router.protocol.messages import (
    PROTOCOL_VERSION,
    Credits,
    Hello,
    SamplingParams,
    StepOutput,
    StepTime,
    StepTimes,
    TokenChunk,
)
from slipstream.router.registry.worker_registry import WorkerRegistry
from slipstream.router.requests.history import History

D = PeerId("d", 1)


class Lab:
    """One decode worker with one slot; `serve` lets its request end and the next begin."""

    def __init__(self, slots=1, **config):
        self.dispatcher = Dispatcher(DispatchConfig(local_prefill_max_tokens=1000, **config))
        self.now, self.num_sent, self.running = 0.0, 0, []
        address = (TransferAddress("h", 1),)
        hello = Hello(PROTOCOL_VERSION, "t", D, "decode", "m", 1, 1, address, 16, 100, slots, 1000, 4096)
        self.do(self.dispatcher.worker_joined(hello, 0.0))
        self.credit(slots)

    def do(self, actions):
        for action in actions:
            message = getattr(action, "message", None)
            if type(message).__name__ == "Generate":
                self.num_sent = message.seq
                self.running.append(message.request.request_id)
        self.dispatcher.check_integrity()
        return actions

    def credit(self, slots=1):
        self.do(self.dispatcher.worker_message(D, Credits(self.num_sent, slots, 100, 1000), self.now))

    def submit(self, request_id, **more):
        request = GenerateRequest(request_id, [7] * 5, SamplingParams(10), **more)
        return self.do(self.dispatcher.submit(request, self.now))

    def serve(self):
        chunk = TokenChunk(self.running[-1], 0, 0, (1,), finish_reason="stop", stop_token_id=1, num_cached_tokens=0)
        self.do(self.dispatcher.worker_message(D, StepOutput((chunk,)), self.now))
        self.credit()


def busy_lab(num_waiting=100, **config):
    """A lab that serves one request a second, with a queue."""
    lab = Lab(**config)
    for i in range(num_waiting + 20):
        lab.submit(f"r{i}")
    for _ in range(19):
        lab.now += 1.0
        lab.serve()
    return lab


def test_a_deadline_that_the_queue_leaves_no_hope_for_is_refused_at_once_with_a_time_to_come_back():
    lab = busy_lab(100)
    with pytest.raises(DeadlineUnreachableError, match=r"20 s \(timeout_s\)") as refused:
        lab.submit("hopeless", timeout_s=20.0)
    assert refused.value.error.kind == "deadline_unreachable"
    assert refused.value.error.retry_after_s == pytest.approx(100 / 2 - 20, rel=0.1)
    lab.submit("hopeful", timeout_s=60.0)
    assert lab.dispatcher.snapshot(lab.now).totals.rejections == {"deadline_unreachable": 1}


def test_a_wait_beyond_the_queue_timeout_is_refused_before_it_is_waited():
    lab = busy_lab(100, queue_timeout_s=30.0)
    with pytest.raises(DeadlineUnreachableError, match="queue_timeout_s"):
        lab.submit("hopeless")
    lab.submit("of another tenant", tenant="other")  # has its turn after one of the flood
    lab.submit("urgent", priority=-1)


def test_an_slo_refuses_only_where_it_is_strict():
    lab = busy_lab(100)
    lab.submit("wish", slo=Slo(1.0))
    with pytest.raises(DeadlineUnreachableError, match=r"1000 ms \(slo\.ttft_ms\)"):
        lab.submit("demand", slo=Slo(1.0, strict=True))
    with pytest.raises(DeadlineUnreachableError, match=r"slo\.ttft_ms"):
        busy_lab(100, strict_slo=True).submit("wish", slo=Slo(1.0))


def test_a_record_tells_the_levels_that_its_request_is_judged_by():
    lab = Lab(slo=SloConfig(ttft_ms=400.0, itl_ms=40.0))
    lab.submit("plain")
    lab.submit("impatient", slo=Slo(ttft_s=0.2))
    assert lab.dispatcher.history.get("plain").levels == Levels(0.4, 0.04)
    assert lab.dispatcher.history.get("impatient").levels == Levels(0.2, 0.04)


def test_where_nobody_waits_nobody_is_refused_whatever_the_pace_was():
    lab = busy_lab(0)
    assert lab.dispatcher.snapshot(lab.now).num_waiting == 0
    lab.submit("first", timeout_s=0.001, slo=Slo(0.001, strict=True))
    assert lab.dispatcher.snapshot(lab.now).num_waiting == 1


def test_a_tenant_fills_half_of_the_queue_at_most_and_the_nameless_all_of_it():
    lab = Lab(max_queued_requests=8)
    lab.submit("running")
    for i in range(4):
        lab.submit(f"a{i}", tenant="a")
    with pytest.raises(TenantQueueFullError, match="4 requests of this tenant") as refused:
        lab.submit("a4", tenant="a")
    assert refused.value.error.kind == "tenant_queue_full"
    assert refused.value.error.retry_after_s == UNKNOWN_RETRY_S
    for i in range(4):
        lab.submit(f"n{i}")
    with pytest.raises(QueueFullError):
        lab.submit("b", tenant="b")


def test_the_bound_of_a_tenant_can_be_set():
    lab = Lab(max_queued_per_tenant=1)
    lab.submit("running", tenant="a")
    lab.submit("waiting", tenant="a")
    with pytest.raises(AdmissionError):
        lab.submit("too many", tenant="a")


def test_a_request_ends_at_its_own_deadline_queued_or_running():
    lab = Lab(request_timeout_s=50.0)
    lab.submit("running", timeout_s=3.0)
    lab.submit("waiting", timeout_s=2.0)
    lab.submit("long", timeout_s=1000.0)
    assert lab.dispatcher.next_deadline() == 2.0
    ends = {}
    for lab.now in (2.0, 3.0, 50.0):
        for action in lab.do(lab.dispatcher.tick(lab.now)):
            if isinstance(action, Finish):
                ends[action.request_id] = (lab.now, action.finish.error.kind, action.finish.error.message)
    assert ends == {
        "waiting": (2.0, "request_timeout", "not finished within 2 s (timeout_s)"),
        "running": (3.0, "request_timeout", "not finished within 3 s (timeout_s)"),
        "long": (50.0, "request_timeout", "not finished within 50 s (request_timeout_s)"),
    }
    assert lab.dispatcher.num_requests == 0


def test_the_pace_is_told_only_from_placements_out_of_a_queue():
    pace = PlacementRate()
    assert pace.wait_s(10, 0.0) == 0.0
    assert pace.retry_after_s(10, 0.0) == UNKNOWN_RETRY_S
    for now in range(100):  # one by one, none waiting: a hundred seconds that say nothing
        pace.note(0, float(now))
    assert pace.interval_s(100.0) is None
    for i in range(MIN_SAMPLES):
        pace.note(5, 100.0 + i / 10)
    assert pace.interval_s(100.0 + (MIN_SAMPLES - 1) / 10) == pytest.approx(0.1)
    assert pace.interval_s(200.0) > 10  # nothing has been placed for a while
    pace.note(0, 101.0)
    assert pace.interval_s(500.0) == pytest.approx(1.0 / MIN_SAMPLES)  # the queue is empty: no stall
    assert pace.retry_after_s(80, 500.0) == pytest.approx(80 / MIN_SAMPLES)
    pace.begin(500.0)
    assert (
        pace.wait_s(80, 500.0) == 0.0
    )  # a new queue may be of other requests: no request is refused for the old one's


def test_a_queue_that_has_never_moved_is_taken_to_stand_still_as_long_again():
    lab = Lab()
    lab.submit("running")
    lab.submit("waiting")
    lab.submit("at once", slo=Slo(1.0, strict=True))  # when nothing is known yet, no request is refused
    lab.now = 3.0
    with pytest.raises(DeadlineUnreachableError, match=r"1000 ms \(slo\.ttft_ms\)"):
        lab.submit("demand", slo=Slo(1.0, strict=True))
    lab.submit("patient", slo=Slo(2.0, strict=True))
    lab.submit("urgent", slo=Slo(1.0, strict=True), priority=-1)  # is the first
    lab.serve()
    lab.submit("after a placement", slo=Slo(1.0, strict=True))


def test_a_queue_of_requests_that_come_back_has_not_stood_still_before():
    lab = Lab()
    lab.submit("running")
    lab.now = 100.0
    lab.do(lab.dispatcher.worker_lost(D, lab.now, "gone"))
    lab.submit("waiting")
    assert lab.dispatcher.snapshot(lab.now).num_waiting == 2
    lab.submit("demand", slo=Slo(1.0, strict=True))


def test_a_stall_that_is_over_is_forgotten_after_a_few_placements():
    pace = PlacementRate()
    for i in range(20):
        pace.note(5, i / 10)
    for i in range(LATEST_SAMPLES):
        pace.note(5, 60.0 + i / 10)
    assert pace.interval_s(60.0 + (LATEST_SAMPLES - 1) / 10) == pytest.approx(0.1)


def test_a_question_with_many_choices_does_not_hold_every_slot_while_others_wait():
    lab = Lab()
    for choice in range(128):
        lab.submit(f"many#{choice}", choice=choice)
    lab.now = 0.05
    lab.submit("of the same tenant")
    lab.submit("of another", tenant="other")
    for _ in range(3):
        lab.now += 0.01
        lab.serve()
    assert {"of the same tenant", "of another"} < set(lab.running[:4])


def test_a_tenant_is_charged_what_its_answers_have_been_like_and_not_what_it_may_ask_for():
    config = DispatchConfig()
    registry, index, history = WorkerRegistry(), PrefixIndex(), History(16)
    retention = SessionRetention(config.retention, registry, index, history)
    table = RequestTable(config, history, Versions(config.versions, registry), index, retention)
    for _ in range(200):
        table.outputs.learn("brief", 10, 8, is_whole=True)
    for tenant in ("brief", "unknown"):
        table.admit(GenerateRequest(tenant, [1] * 10, SamplingParams(max_tokens=4000), tenant=tenant), [], 0.0)
        table.leave_queue(table[tenant], 0.0)
    assert 10 + 6 <= table["brief"].charged_tokens <= 10 + 60
    assert table["unknown"].charged_tokens < 10 + 4000
    assert table["brief"].charged_tokens < table["unknown"].charged_tokens


def slow_lab(slots=1):
    """Steps take 10 ms."""
    lab = Lab(slots)
    for _ in range(20):
        lab.do(lab.dispatcher.worker_message(D, StepTimes((StepTime(0, 0, 1, 10, 0.01),)), 0.0))
    return lab


def ask(lab, request_id, num_tokens, *, to_the_end=True, **more):
    sampling = SamplingParams(num_tokens, ignore_eos=to_the_end)
    lab.do(lab.dispatcher.submit(GenerateRequest(request_id, [7] * 5, sampling, **more), lab.now))


def test_answers_of_known_length_put_a_deadline_out_of_reach_before_the_queue_has_moved():
    lab = slow_lab()
    ask(lab, "running", 400)
    ask(lab, "waiting", 600)
    with pytest.raises(DeadlineUnreachableError, match=r"about 10\.\d s.*4 s \(timeout_s\)"):
        ask(lab, "too late", 10, timeout_s=4.0)
    ask(lab, "hopeful", 10, timeout_s=6.0)
    ask(lab, "urgent", 10, timeout_s=4.0, priority=-1)  # is the first
    ask(lab, "patient", 10)


def test_answers_that_may_end_any_time_put_no_deadline_out_of_reach():
    lab = slow_lab()
    ask(lab, "running", 400, to_the_end=False)
    ask(lab, "waiting", 600, to_the_end=False)
    ask(lab, "demand", 10, timeout_s=1.0)


def test_a_worker_of_unknown_speed_puts_no_deadline_out_of_reach():
    lab = slow_lab()
    ask(lab, "running", 400)
    ask(lab, "waiting", 600)
    other = Hello(
        PROTOCOL_VERSION, "t", PeerId("e", 1), "decode", "m", 1, 1, (TransferAddress("h", 2),), 16, 100, 1, 1000, 4096
    )
    lab.do(lab.dispatcher.worker_joined(other, 0.0))  # it has not reported its speed
    ask(lab, "demand", 10, timeout_s=1.0)


def test_a_crowd_of_a_lower_class_puts_no_deadline_of_a_higher_one_out_of_reach():
    lab = slow_lab()
    ask(lab, "running", 2)
    for number in range(300):
        ask(lab, f"patient{number}", 2000, priority=5)
    for number in range(3):
        ask(lab, f"before{number}", 2)
    ask(lab, "demand", 10, timeout_s=1.0)


def test_slots_that_a_worker_has_refused_to_fill_are_not_taken_by_anybody():
    lab = slow_lab(slots=2)
    ask(lab, "running", 400)
    lab.dispatcher.registry.get(D).ledger.exhaust()
    ask(lab, "waiting", 600)
    ask(lab, "demand", 10, timeout_s=1.0)


def test_a_request_that_no_worker_has_come_for_says_so():
    lab = Lab(queue_timeout_s=45.0)
    lab.do(lab.dispatcher.worker_lost(D, 0.0))
    lab.submit("waiting")
    (end,) = [action for action in lab.dispatcher.tick(45.0) if isinstance(action, Finish)]
    assert end.finish.error.message == "no worker of the model has come within 45 s (queue_timeout_s)"


def test_changed_limits_and_levels_are_those_of_new_requests():
    lab = Lab(request_timeout_s=50.0, queue_timeout_s=45.0)
    lab.submit("running", slo=Slo(itl_s=0.2))
    lab.submit("waiting")
    config = DispatchConfig(request_timeout_s=5.0, queue_timeout_s=4.0, slo=SloConfig(ttft_ms=10.0, itl_ms=1.0))
    lab.do(lab.dispatcher.follow(config, 0.0))
    assert lab.dispatcher.history.get("running").levels == Levels(0.5, 0.2)
    assert lab.dispatcher.tick(44.0) == []
    reasons = [
        a.finish.error.message
        for a in (*lab.dispatcher.tick(45.0), *lab.dispatcher.tick(50.0))
        if isinstance(a, Finish)
    ]
    assert reasons == [
        "no worker had room within 45 s (queue_timeout_s)",
        "not finished within 50 s (request_timeout_s)",
    ]
