"""Where a request goes, given its size and the credits."""

from slipstream.kv_transfer.ticket import PeerId, TransferAddress
from slipstream.router.messages import PROTOCOL_VERSION, Credits, Hello
from slipstream.router.placement.capacity import refusal
from slipstream.router.placement.decision import Placement, Wait
from slipstream.router.placement.isl_threshold import place
from slipstream.router.roster import WorkerState

LOCAL_MAX = 100


def worker(role, name, *, slots=4, pages=100, tokens=1000, free=None, max_model_len=4096):
    hello = Hello(
        version=PROTOCOL_VERSION,
        token="t",
        worker=PeerId(name, 1),
        role=role,
        model="m",
        tp=1,
        pid=1,
        addresses=(TransferAddress("127.0.0.1", 1),),
        page_tokens=16,
        num_pages=pages,
        max_slots=slots,
        max_queued_tokens=tokens,
        max_model_len=max_model_len,
    )
    state = WorkerState(hello, 0.0)
    state.ledger.report(Credits(0, *(free or (slots, pages, tokens))))
    return state


def put(num_tokens, decodes, prefills, avoid=frozenset()):
    return place(num_tokens, avoid, decodes, prefills, LOCAL_MAX)


def where(found):
    assert isinstance(found, Placement)
    return found.decision.reason, found.decode.name, found.prefill and found.prefill.name


def test_a_short_prompt_stays_on_the_decode_worker():
    assert where(put(100, [worker("decode", "d")], [worker("prefill", "p")])) == ("short_prompt", "d", None)


def test_a_long_prompt_goes_to_a_prefill_group():
    assert where(put(101, [worker("decode", "d")], [worker("prefill", "p")])) == ("long_prompt", "d", "p")


def test_without_prefill_groups_a_long_prompt_is_local():
    assert where(put(500, [worker("decode", "d")], [])) == ("no_prefill_group", "d", None)


def test_a_prompt_that_no_prefill_group_can_ever_hold_is_local():
    groups = [worker("prefill", "p", pages=10), worker("prefill", "q", max_model_len=200)]
    assert where(put(500, [worker("decode", "d")], groups)) == ("prefill_too_small", "d", None)


def test_the_decode_worker_with_the_largest_free_share_wins():
    decodes = [
        worker("decode", "few_slots", free=(1, 100, 0)),
        worker("decode", "few_pages", free=(4, 20, 0)),
        worker("decode", "best", free=(2, 60, 0)),
    ]
    assert where(put(50, decodes, []))[1] == "best"


def test_the_prefill_group_with_most_free_tokens_wins():
    groups = [worker("prefill", "busy", free=(4, 100, 300)), worker("prefill", "free", free=(4, 100, 600))]
    assert where(put(200, [worker("decode", "d")], groups))[2] == "free"


def test_full_decode_workers_make_it_wait_for_decode():
    assert put(50, [worker("decode", "d", free=(0, 100, 0))], []) == Wait("decode")
    assert put(50, [worker("decode", "d", free=(4, 3, 0))], []) == Wait("decode")  # 51 tokens need 4 pages


def test_busy_prefill_groups_make_a_long_prompt_wait_although_decode_has_room():
    decodes = [worker("decode", "d")]
    assert put(200, decodes, [worker("prefill", "p", free=(4, 100, 199))]) == Wait("prefill")
    assert put(200, decodes, [worker("prefill", "p", free=(4, 12, 1000))]) == Wait("prefill")


def test_an_idle_group_takes_a_prompt_longer_than_its_queue():
    decodes = [worker("decode", "d")]
    assert where(put(1500, decodes, [worker("prefill", "p", tokens=1000)])) == ("long_prompt", "d", "p")
    assert put(1500, decodes, [worker("prefill", "p", tokens=1000, free=(4, 100, 999))]) == Wait("prefill")


def test_a_worker_that_failed_the_request_is_avoided_even_if_the_others_are_busy():
    decodes = [worker("decode", "bad"), worker("decode", "good", free=(0, 100, 0))]
    assert put(50, decodes, [], avoid={PeerId("bad", 1)}) == Wait("decode")
    assert where(put(50, decodes, [], avoid={PeerId("good", 1)}))[1] == "bad"


def test_the_only_decode_worker_is_taken_again():
    assert where(put(50, [worker("decode", "bad")], [], avoid={PeerId("bad", 1)}))[1] == "bad"


def test_when_it_failed_on_every_prefill_group_it_is_local():
    found = put(500, [worker("decode", "d")], [worker("prefill", "p")], avoid={PeerId("p", 1)})
    assert where(found) == ("prefill_failed", "d", None)


def test_a_sequence_without_room_for_one_more_token_is_refused_by_all_sizes():
    by_pages = worker("decode", "d", pages=4)  # 64 tokens
    by_length = worker("decode", "e", max_model_len=50)
    assert refusal(63, [by_pages, by_length]) is None
    assert refusal(64, [by_pages, by_length]) == (
        "a sequence of 64 tokens leaves no room for output: at most 64 tokens fit"
    )
    assert put(64, [by_pages, by_length], []) == Wait("worker")


def test_nobody_to_ask_is_no_refusal():
    assert refusal(10**9, []) is None


def test_a_decision_names_all_candidates_and_says_why_in_one_line():
    decodes = [worker("decode", "d"), worker("decode", "full", free=(0, 0, 0))]
    found = put(200, decodes, [worker("prefill", "p")])
    assert isinstance(found, Placement)
    assert {(c.decode.name, c.prefill and c.prefill.name, c.fits) for c in found.decision.candidates} == {
        ("d", "p", True),
        ("full", "p", False),
    }
    assert found.decision.why.startswith("remote on p -> d: long_prompt; 200 tokens")
    assert "\n" not in found.decision.why
