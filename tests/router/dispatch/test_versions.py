"""Versions of a model: the split, who keeps which, and what becomes of requests whose version goes away."""

from collections import Counter

import pytest

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.config.router_config import DispatchConfig, VersionsConfig
from slipstream.router.dispatch.dispatcher import Dispatcher
from slipstream.router.dispatch.table.actions import Emit, Finish, Send
from slipstream.router.observability.version_metrics import shown_counts
from slipstream.router.protocol.block_hash import HashChain, model_key, pack_block_ids, root_digest
from slipstream.router.protocol.generation import GenerateRequest, InvalidRequestError, Resumed
from slipstream.router.protocol.messages import (
    BlocksChanged,
    Credits,
    Failed,
    Generate,
    Prefill,
    Reserve,
    Reserved,
    SamplingParams,
    StepOutput,
    TokenChunk,
    pack_ids,
)
from slipstream.router.status.version_status import VersionCounts, VersionStatus
from tests.support.router.dispatcher_lab import ticket
from tests.support.router.greetings import make_hello

OLD, NEW = PeerId("old", 1), PeerId("new", 1)
OLD_P, NEW_P = PeerId("old-p", 1), PeerId("new-p", 1)
CONFIG = DispatchConfig(local_prefill_max_tokens=10, versions=VersionsConfig(wait_s=5.0))


class Lab:
    """A dispatcher whose workers have room for everything, and a clock in hand."""

    def __init__(self, config=CONFIG):
        self.dispatcher = Dispatcher(config)
        self.now = 0.0
        self.actions = []
        self.num_submitted = 0

    def do(self, actions):
        self.actions += actions
        self.dispatcher.check_integrity()

    def join(self, peer, version, role="decode", *, slots=1000, max_model_len=4096):
        hello = make_hello(
            peer,
            role,
            num_pages=100_000,
            max_slots=slots,
            max_queued_tokens=1_000_000,
            max_model_len=max_model_len,
            model_version=version,
        )
        self.do(self.dispatcher.worker_joined(hello, self.now))
        self.say(peer, Credits(0, slots, 100_000, 1_000_000))

    def leave(self, peer):
        self.do(self.dispatcher.worker_lost(peer, self.now))

    def say(self, peer, message):
        self.do(self.dispatcher.worker_message(peer, message, self.now))

    def submit(self, request_id=None, *, num_prompt=5, **more):
        if request_id is None:
            self.num_submitted += 1
            request_id = f"r{self.num_submitted}"
        request = GenerateRequest(request_id, [7] * num_prompt, SamplingParams(10), **more)
        self.do(self.dispatcher.submit(request, self.now))
        return request_id

    def token(self, peer, request_id, index, attempt=0, finish=None):
        self.say(peer, StepOutput((TokenChunk(request_id, attempt, index, (7,), (), finish),)))

    def split(self, split):
        self.do(self.dispatcher.set_split(split, self.now))

    def tick(self, now):
        self.now = now
        self.do(self.dispatcher.tick(now))

    def drain(self, peer):
        self.do(self.dispatcher.drain(peer, self.now))

    def version(self, request_id):
        return self.dispatcher.history.get(request_id).version

    def phase(self, request_id):
        return self.dispatcher.history.get(request_id).phase

    def where(self):
        """Worker and request of every Generate and Reserve since the last look."""
        taken, self.actions = self.actions, []
        sent = [action for action in taken if isinstance(action, Send)]
        return [
            (one.worker, one.message.request.request_id) for one in sent if isinstance(one.message, Generate | Reserve)
        ]

    def finishes(self):
        return {action.request_id: action.finish for action in self.actions if isinstance(action, Finish)}

    def counts(self, version):
        return next(one for one in self.dispatcher.snapshot(self.now).versions if one.name == version).counts


@pytest.fixture
def both():
    lab = Lab()
    lab.join(OLD, "1")
    lab.join(NEW, "2")
    return lab


@pytest.mark.parametrize("shares", [{"1": 90, "2": 10}, {"1": 0.5, "2": 0.5}, {"1": 2, "2": 1}])
def test_of_any_run_of_requests_each_version_has_its_share_within_one(both, shares):
    both.split(shares)
    total = sum(shares.values())
    seen = Counter()
    for at in range(1, 301):
        seen[both.version(both.submit())] += 1
        for version, weight in shares.items():
            assert abs(seen[version] - at * weight / total) <= 1


def test_requests_run_on_workers_of_their_version_only(both):
    both.split({"1": 50, "2": 50})
    for _ in range(20):
        both.submit()
    placed = both.where()
    assert len(placed) == 20
    assert {(worker, both.version(request_id)) for worker, request_id in placed} == {(OLD, "1"), (NEW, "2")}


def test_without_a_split_versions_share_by_the_size_of_their_pools():
    lab = Lab()
    lab.join(OLD, "1", slots=30)
    lab.join(NEW, "2", slots=10)
    assert Counter(lab.version(lab.submit()) for _ in range(40)) == {"1": 30, "2": 10}


def test_a_version_with_a_share_of_0_gets_nothing_and_one_that_nobody_serves_waits_for_its_workers(both):
    both.split({"1": 1, "2": 0, "3": 1})
    assert {both.version(both.submit()) for _ in range(10)} == {"1"}
    both.join(PeerId("third", 1), "3")
    assert Counter(both.version(both.submit()) for _ in range(10)) == {"1": 5, "3": 5}


@pytest.mark.parametrize("split", [{"1": -1}, {"1": float("nan")}, {"1": 0}, {"": 1}, {}])
def test_a_split_that_makes_no_sense_changes_nothing(both, split):
    both.split({"1": 1})
    with pytest.raises(ValueError, match="split"):
        both.dispatcher.set_split(split, 0.0)
    assert both.dispatcher.versions._split == {"1": 1}


def test_a_conversation_stays_on_its_version_as_long_as_that_has_a_share(both):
    both.split({"1": 50, "2": 50})
    first = {name: both.version(both.submit(session=name)) for name in "abcd"}
    assert set(first.values()) == {"1", "2"}
    both.split({"1": 90, "2": 10})
    assert {name: both.version(both.submit(session=name)) for name in "abcd"} == first
    both.split({"1": 100, "2": 0})
    assert {both.version(both.submit(session=name)) for name in "abcd"} == {"1"}


def test_what_only_shares_a_cache_key_is_split_among_versions(both):
    both.split({"1": 50, "2": 50})
    chosen = [both.version(both.submit(session="k", keeps_version=False)) for _ in range(8)]
    assert sorted(chosen) == ["1"] * 4 + ["2"] * 4


def test_all_choices_of_an_answer_have_one_version(both):
    both.split({"1": 50, "2": 50})
    for at in range(4):
        first = both.submit(f"q{at}#0")
        others = [both.submit(f"q{at}#{n}", choice=n, first_choice=first) for n in (1, 2)]
        assert {both.version(other) for other in others} == {both.version(first)}


def test_a_client_that_names_a_version_gets_it_whatever_the_split(both):
    both.split({"1": 100, "2": 0})
    assert both.version(both.submit("r", version="2")) == "2"
    assert both.where() == [(NEW, "r")]


def test_a_prompt_too_long_for_one_version_goes_to_the_other():
    lab = Lab()
    lab.join(OLD, "1", max_model_len=64)
    lab.join(NEW, "2", max_model_len=4096)
    assert {lab.version(lab.submit(num_prompt=100)) for _ in range(4)} == {"2"}


def test_what_came_before_any_worker_is_split_when_they_are_there():
    lab = Lab(DispatchConfig(versions=VersionsConfig(split={"2": 1})))
    early = [lab.submit() for _ in range(4)]
    assert {lab.version(one) for one in early} == {""}
    lab.join(NEW, "2")
    assert {lab.version(one) for one in early} == {"2"}
    assert [request_id for _, request_id in lab.where()] == early


def test_a_full_version_holds_up_nobody_of_another_one():
    lab = Lab()
    lab.join(OLD, "1", slots=1)
    lab.join(NEW, "2", slots=1000)
    lab.split({"1": 1, "2": 1})
    requests = [lab.submit() for _ in range(200)]
    waiting = [one for one in requests if lab.phase(one) == "queued"]
    assert {lab.version(one) for one in waiting} == {"1"}
    assert len(waiting) == 99


def test_prefill_groups_serve_decode_workers_of_their_version(both):
    both.join(OLD_P, "1", "prefill")
    both.split({"1": 1, "2": 1})
    old, new = (both.submit(num_prompt=20) for _ in range(2))
    if both.version(old) == "2":
        old, new = new, old
    assert [type(action.message) for action in both.actions if isinstance(action, Send)].count(Reserve) == 1
    assert set(both.where()) == {(NEW, new), (OLD, old)}  # the other is computed where it is decoded
    both.say(OLD, Reserved(old, 0, 0, ticket(destination=OLD)))
    prefills = [action.worker for action in both.actions if isinstance(getattr(action, "message", None), Prefill)]
    assert prefills == [OLD_P]


def test_blocks_of_one_version_are_no_hit_for_another(both):
    chain = HashChain(root_digest(model_key("m", "1"), ""), 16)
    ids = [7] * 64
    chain.extend(memoryview(bytearray(pack_ids(ids))).cast("i"), 4)
    both.say(OLD, BlocksChanged(1, True, pack_block_ids(chain.digests), b""))
    for version, worker, predicted in (("2", NEW, 0), ("1", OLD, 64)):
        both.submit(version, num_prompt=65, version=version, local_prefill_max_tokens=1000)
        both.token(worker, version, 0)
        assert both.dispatcher.snapshot(0.0).prefix_index.predicted_tokens == predicted


def test_a_retry_stays_on_its_version(both):
    both.join(PeerId("old2", 1), "1")
    both.split({"1": 1, "2": 99})
    request_id = both.submit(version="")
    while both.version(request_id) != "1":
        request_id = both.submit()
    ((worker, _),) = [place for place in both.where() if place[1] == request_id]
    both.leave(worker)
    ((second, _),) = both.where()
    assert {worker, second} == {OLD, PeerId("old2", 1)}
    assert both.version(request_id) == "1"


def test_roll_back_moves_what_waits_and_leaves_what_runs():
    lab = Lab()
    lab.join(OLD, "1")
    lab.join(NEW, "2", slots=1)
    lab.split({"2": 1})
    running, waiting = lab.submit(), lab.submit()
    lab.where()
    lab.split({"1": 100, "2": 0})
    assert (lab.version(running), lab.version(waiting)) == ("2", "1")
    assert lab.where() == [(OLD, waiting)]
    lab.token(NEW, running, 0, finish="stop")
    assert lab.finishes()[running].reason == "stop"


def test_a_request_without_tokens_moves_at_once_when_its_version_has_no_decode_worker(both):
    both.split({"1": 0, "2": 1})
    request_id = both.submit()
    both.where()
    both.leave(NEW)
    assert both.where() == [(OLD, request_id)]
    assert both.version(request_id) == "1"
    assert both.counts("1").num_moved_in == 1
    assert "continues with version 1" in "\n".join(both.dispatcher.history.get(request_id).lines())


def test_a_request_with_tokens_waits_for_its_version_and_then_goes_on_with_another(both):
    both.split({"1": 0.1, "2": 1})
    request_id = both.submit()
    assert both.version(request_id) == "2"
    both.token(NEW, request_id, 0)
    both.where()
    both.leave(NEW)
    assert both.where() == []
    assert both.dispatcher.next_deadline() == 5.0
    both.tick(4.9)
    assert both.where() == []
    both.tick(5.0)
    assert both.where() == [(OLD, request_id)]
    both.token(OLD, request_id, 1, attempt=1, finish="stop")
    assert both.finishes()[request_id].usage.num_output_tokens == 2


def test_a_request_that_was_taken_over_goes_on_with_another_version_if_nobody_serves_its_own():
    """The driver was killed during an update, and what served before serves again."""
    lab = Lab()
    lab.join(NEW, "2")
    lab.now = 1.0
    request = lab.submit(resumed=Resumed(pack_ids((7,)), "1"))
    assert lab.dispatcher.next_deadline() == 6.0
    lab.tick(5.9)
    assert lab.where() == []
    lab.tick(6.0)
    assert lab.where() == [(NEW, request)]


def test_a_request_with_tokens_goes_on_with_its_version_if_a_worker_of_it_comes_back_in_time(both):
    both.split({"1": 0.1, "2": 1})
    request_id = both.submit()
    both.token(NEW, request_id, 0)
    both.where()
    both.leave(NEW)
    again = PeerId("new", 2)
    both.join(again, "2")
    assert both.where() == [(again, request_id)]
    assert both.version(request_id) == "2"


def test_where_answers_may_not_change_their_version_a_request_with_tokens_ends_with_an_error_when_it_is_over():
    lab = Lab(DispatchConfig(versions=VersionsConfig(continue_across=False)))
    lab.join(OLD, "1")
    lab.join(NEW, "2")
    lab.split({"2": 1})
    request_id = lab.submit()
    lab.token(NEW, request_id, 0)
    lab.leave(NEW)
    lab.tick(4.0)
    assert request_id not in lab.finishes()
    lab.tick(5.0)
    assert lab.finishes()[request_id].error.kind == "shutting_down"


def test_who_asked_for_a_version_that_was_sent_away_hears_that_it_is_gone():
    lab = Lab()
    lab.join(OLD, "1", slots=1)
    lab.join(NEW, "2")
    running, waiting = lab.submit(version="1"), lab.submit(version="1")
    lab.drain(OLD)
    assert lab.finishes()[waiting].error.message == "version '1' of the model is not served any more"
    lab.token(OLD, running, 0, finish="stop")
    assert lab.finishes()[running].error is None


def test_the_only_version_is_waited_for_as_long_as_the_queue_allows():
    lab = Lab()
    lab.join(OLD, "1")
    request_id = lab.submit()
    lab.token(OLD, request_id, 0)
    lab.leave(OLD)
    lab.where()
    lab.tick(100.0)
    assert lab.phase(request_id) == "queued"
    again = PeerId("old", 2)
    lab.join(again, "1")
    assert lab.where() == [(again, request_id)]


def test_an_attempt_that_the_new_version_fails_goes_to_the_one_with_the_larger_share(both):
    both.split({"1": 90, "2": 10})
    request_id = both.submit()
    while both.version(request_id) != "2":
        request_id = both.submit()
    both.where()
    both.say(NEW, StepOutput((TokenChunk(request_id, 0, 0, (), (), "error"),)))
    assert both.where() == [(OLD, request_id)]
    assert both.counts("2").num_failed_attempts == 1


def test_the_first_failure_of_the_old_version_sends_nobody_to_the_new_one(both):
    both.join(PeerId("old2", 1), "1")
    both.split({"1": 90, "2": 10})
    request_id = both.submit()
    assert both.version(request_id) == "1"
    ((worker, _),) = both.where()
    both.say(worker, Failed(request_id, 0, "broken", True))
    assert both.version(request_id) == "1"


def test_a_stream_leaves_a_version_only_after_its_second_failure(both):
    both.split({"1": 1, "2": 1})
    request_id = both.submit()
    while both.version(request_id) != "2":
        request_id = both.submit()
    both.token(NEW, request_id, 0)
    both.say(NEW, Failed(request_id, 0, "broken", True))
    assert both.version(request_id) == "2"
    both.say(NEW, Failed(request_id, 1, "broken", True))
    assert both.version(request_id) == "1"


def test_ends_and_times_are_counted_by_version(both):
    both.split({"1": 1, "2": 1})
    requests = [both.submit() for _ in range(4)]
    both.now = 2.0
    for request_id in requests:
        both.token(OLD if both.version(request_id) == "1" else NEW, request_id, 0, finish="stop")
    for version in ("1", "2"):
        counts = both.counts(version)
        assert (counts.num_requests, counts.num_first_tokens, counts.ttft_s) == (2, 2, 4.0)
        assert counts.ttft_moments.typical_s == pytest.approx(2.0)
        assert counts.num_itls == 0, "an answer of one token has no time between tokens"

        assert counts.ends == {"stop": 2}
    assert [action.token_ids for action in both.actions if isinstance(action, Emit)] == [(7,)] * 4


def test_the_mean_time_between_tokens_of_each_answer_is_counted_by_version(both):
    request_id = both.submit()
    worker = OLD if both.version(request_id) == "1" else NEW
    both.token(worker, request_id, 0)
    for index in (1, 2):
        both.now += 0.5 * index
        both.token(worker, request_id, index, finish="stop" if index == 2 else None)
    counts = both.counts(both.version(request_id))
    assert (counts.num_itls, counts.itl_s) == (1, 0.75)
    assert counts.itl_moments.typical_s == pytest.approx(0.75)


def test_tokens_of_one_tokenizer_go_to_no_version_with_another(both):
    both.split({"1": 100, "2": 1})
    first = [both.submit(versions=("2",)) for _ in range(5)]
    both.split({"1": 100, "2": 0})
    second = [both.submit(versions=("2", "3")) for _ in range(5)]
    assert {both.version(request_id) for request_id in first + second} == {"2"}
    both.token(NEW, first[0], 0)
    both.say(NEW, Failed(first[1], 0, "broken", True))
    assert both.version(first[1]) == "2"
    both.leave(NEW)
    both.tick(4.9)
    assert not both.finishes()
    both.tick(5.0)
    errors = {finish.error.kind for finish in both.finishes().values()}
    assert (len(both.finishes()), errors) == (10, {"shutting_down"})
    assert "version '2' of the model is not served any more" in both.finishes()[first[0]].error.message


def test_tokens_of_a_version_that_is_not_there_wait_for_it_as_long_as_for_one_that_was_lost(both):
    late, gone = both.submit(versions=("3",)), both.submit(versions=("4",))
    both.tick(4.0)
    both.join(NEW_P, "3")
    assert both.version(late) == "3"
    both.tick(5.0)
    assert set(both.finishes()) == {gone}


def test_a_version_that_nobody_has_ever_served_is_refused(both):
    with pytest.raises(InvalidRequestError, match="version '3' of the model is not served"):
        both.submit(version="3")


def test_to_ask_how_a_version_stands_that_nobody_serves_yet_makes_it_none_that_is_waited_for(both):
    both.split({"1": 1.0, "3": 1.0})
    assert {one.name for one in both.dispatcher.snapshot(both.now).versions} == {"1", "2", "3"}
    both.join(OLD_P, "1", "prefill")
    with pytest.raises(InvalidRequestError, match="version '3' of the model is not served"):
        both.submit(version="3")


def test_a_version_whose_worker_has_just_died_is_waited_for(both):
    both.leave(NEW)
    request_id = both.submit(version="2")
    again = PeerId("new", 2)
    both.join(again, "2")
    assert both.where() == [(again, request_id)]


def test_metrics_have_the_latest_versions_by_name_and_the_others_as_one():
    statuses = [
        VersionStatus(f"v{n}", None, False, 0, 0, 0, VersionCounts(num_first_tokens=1, ttft_s=0.5)) for n in range(20)
    ]
    shown = shown_counts(statuses)
    assert set(shown) == {"(others)", *(f"v{n}" for n in range(12, 20))}
    assert (shown["(others)"].num_first_tokens, shown["(others)"].ttft_s) == (12, 6.0)
