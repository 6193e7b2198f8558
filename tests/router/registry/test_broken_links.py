"""Links between hosts that cannot move pages."""

from __future__ import annotations

import dataclasses

import pytest

from slipstream.kv_transfer.api.ticket import HandoffTicket, TransferAddress
from slipstream.router.config.router_config import DispatchConfig, PolicyName
from slipstream.router.dispatch.dispatcher import Dispatcher
from slipstream.router.dispatch.table.actions import Emit, Finish, Send
from slipstream.router.protocol.generation import GenerateRequest
from slipstream.router.protocol.messages import (
    Credits,
    Failed,
    Generate,
    HandedOff,
    Hello,
    Prefill,
    Reserve,
    Reserved,
    Role,
    SamplingParams,
    StepOutput,
    TokenChunk,
)
from slipstream.router.registry.broken_links import FORGET_S, RETRY_MAX_S, TRIAL_S, Links
from tests.support.router.greetings import make_hello


def hello(name: str, host: str, role: Role = "prefill") -> Hello:
    return make_hello(
        name, role, addresses=(TransferAddress(host, 1000),), num_pages=1000, max_slots=8, max_queued_tokens=10_000
    )


P1, P2, P3 = hello("p1", "a"), hello("p2", "a"), hello("p3", "b")
D1, D2, D3 = hello("d1", "b", "decode"), hello("d2", "b", "decode"), hello("d3", "a", "decode")


def test_a_cut_link_is_closed_for_all_workers_of_its_hosts_and_for_nobody_else() -> None:
    links = Links()
    links.failed(P1, D1, 0.0)
    assert not any(links.is_open(p, d, 0.5) for p in (P1, P2) for d in (D1, D2))
    assert not links.is_open(D2, P2, 0.5)  # a link has no direction
    assert links.is_open(P1, D3, 0.5)
    assert links.is_open(P3, D1, 0.5)
    assert list(links) == [("a", "b")]


def test_on_one_host_only_the_pair_is_closed() -> None:
    links = Links()
    links.failed(P1, D3, 0.0)
    assert not links.is_open(P1, D3, 0.5)
    assert links.is_open(P2, D3, 0.5)


def test_one_request_at_a_time_tries_a_closed_link_after_pauses_that_double() -> None:
    links, now, pauses = Links(), 0.0, []
    links.failed(P1, D1, now)
    for _ in range(8):
        closed_s = now
        while not links.is_open(P1, D1, now):
            now += 0.25
        pauses.append(now - closed_s)
        links.used(P1, D1, now)
        assert not links.is_open(P2, D2, now + 5.0)  # it is being tried
        now += 6.0
        links.failed(P2, D1, now)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, RETRY_MAX_S, RETRY_MAX_S, RETRY_MAX_S]


def test_transfers_that_fail_together_count_once() -> None:
    links = Links()
    for _ in range(20):
        links.failed(P1, D1, 0.0)
    assert links.is_open(P1, D1, 1.0)


def test_a_link_that_works_again_is_open_at_once() -> None:
    links = Links()
    links.failed(P1, D1, 0.0)
    links.used(P1, D1, 2.0)
    links.worked(P2, D2)
    assert links.is_open(P1, D1, 2.0)
    assert len(links) == 0


def test_a_trial_that_ends_without_a_word_gives_way_to_another() -> None:
    links = Links()
    links.failed(P1, D1, 0.0)
    links.used(P1, D1, 2.0)
    assert not links.is_open(P1, D1, 2.0 + TRIAL_S - 0.1)
    assert links.is_open(P1, D1, 2.0 + TRIAL_S)


def test_a_link_that_only_a_dead_worker_closed_is_open_again() -> None:
    links = Links()
    links.failed(P1, D1, 0.0)
    links.worker_lost(P2)
    assert not links.is_open(P1, D1, 0.5)
    links.worker_lost(P1)
    assert links.is_open(P2, D1, 0.5)


def test_links_that_nobody_wants_are_forgotten() -> None:
    links = Links()
    for number in range(100):
        links.failed(dataclasses.replace(P1, addresses=(TransferAddress(f"h{number}", 1),)), D1, float(number))
    assert len(links) == 100
    links.failed(P1, D1, 100 + FORGET_S)
    assert len(links) == 1


class Cluster:
    """Two prefill groups and a decode worker each on their own hosts, played by hand."""

    def __init__(self, policy: PolicyName) -> None:
        self.dispatcher = Dispatcher(DispatchConfig(policy=policy, local_prefill_max_tokens=10))
        self.now = 0.0
        self.sent: list[tuple[str, object]] = []
        self.ends: list[Finish] = []
        self.tickets = 0

    def join(self, who: Hello) -> None:
        self.do(self.dispatcher.worker_joined(who, self.now))
        self.say(who, Credits(0, 8, 1000, 10_000))

    def say(self, who: Hello, message: object) -> None:
        self.do(self.dispatcher.worker_message(who.worker, message, self.now))  # type: ignore[arg-type]

    def do(self, actions: list[object] | list) -> None:  # type: ignore[type-arg]
        self.dispatcher.check_integrity()
        for action in actions:
            match action:
                case Send(peer, message):
                    self.sent.append((peer.name, message))
                case Finish():
                    self.ends.append(action)
                case Emit():
                    pass

    def submit(self, request_id: str) -> None:
        request = GenerateRequest(request_id, list(range(100)), SamplingParams(max_tokens=5))
        self.do(self.dispatcher.submit(request, self.now))

    def reserved(self, request_id: str, attempt: int = 0) -> Prefill | Generate:
        """The decode worker answers the last Reserve; what the router makes of it."""
        name, reserve = self.sent[-1]
        assert isinstance(reserve, Reserve)
        decode = next(w for w in WORKERS if w.worker.name == name)
        self.tickets += 1
        ticket = HandoffTicket(self.tickets, decode.worker, decode.addresses, 0, 7, 64, 2, 8, 256)
        self.say(decode, Reserved(request_id, attempt, 0, ticket))
        message = self.sent[-1][1]
        assert isinstance(message, Prefill | Generate)
        return message


WORKERS = (P1, P3, D1)
POLICIES: tuple[PolicyName, ...] = ("slo", "kv", "least_loaded", "round_robin", "isl_threshold")


@pytest.mark.parametrize("policy", POLICIES)
def test_requests_go_around_a_cut_link_and_over_it_when_it_is_healed(policy: PolicyName) -> None:
    cluster = Cluster(policy)
    cluster.join(P1)
    cluster.join(D1)
    cluster.submit("one")
    assert isinstance(cluster.reserved("one"), Prefill)
    cluster.now = 5.0
    cluster.say(P1, Failed("one", 0, "pages could not be sent: d1 is lost: no answer within 5 s", True, True))
    name, again = cluster.sent[-1]
    assert (name, type(again)) == ("d1", Generate)  # by itself: there is no other worker
    assert cluster.dispatcher.history.get("one").decisions[-1].reason == "prefill_failed"  # type: ignore[union-attr]
    cluster.submit("two")
    assert isinstance(cluster.sent[-1][1], Generate)  # this one does not even try
    assert cluster.dispatcher.snapshot(cluster.now).closed_links == (("a", "b"),)
    assert cluster.dispatcher.history.get("two").decisions[-1].reason == "prefill_unreachable"  # type: ignore[union-attr]
    cluster.now = 7.0
    cluster.submit("three")
    assert isinstance(cluster.reserved("three"), Prefill)  # the trial
    cluster.submit("four")
    assert isinstance(cluster.sent[-1][1], Generate)
    cluster.say(P1, StepOutput((TokenChunk("three", 0, 0, (5,)),)))
    cluster.say(D1, HandedOff("three", 0, 1000, 0.1))
    cluster.submit("five")
    assert isinstance(cluster.sent[-1][1], Reserve)
    assert not cluster.dispatcher.snapshot(cluster.now).closed_links
    assert not cluster.ends


@pytest.mark.parametrize("policy", POLICIES)
def test_another_prefill_host_takes_over_while_a_link_is_cut(policy: PolicyName) -> None:
    cluster = Cluster(policy)
    for who in (P1, D1):
        cluster.join(who)
    cluster.submit("one")
    cluster.reserved("one")
    cluster.join(P3)  # on the decode worker's own host
    cluster.say(P1, Failed("one", 0, "no answer", True, True))
    assert isinstance(cluster.sent[-1][1], Reserve)
    assert cluster.sent[-1][1].source == P3.worker
    for number in range(6):
        cluster.submit(f"more-{number}")
        message = cluster.sent[-1][1]
        assert isinstance(message, Reserve)
        assert message.source == P3.worker


def test_a_request_whose_pages_find_no_way_twice_is_prefilled_where_it_decodes() -> None:
    cluster = Cluster("least_loaded")
    hosts = [hello(f"p{number}", f"host-{number}") for number in range(6)]
    for who in (D1, *hosts):
        cluster.join(who)
    cluster.submit("one")
    for attempt in range(2):
        prefill = cluster.reserved("one", attempt)
        assert isinstance(prefill, Prefill)
        sender = next(who for who in hosts if who.worker.name == cluster.sent[-1][0])
        cluster.now += 5.0
        cluster.say(sender, Failed("one", attempt, "no answer", True, True))
    assert isinstance(cluster.sent[-1][1], Generate)
    assert not cluster.ends
