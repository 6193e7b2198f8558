"""Log-probabilities of a prompt reach the client once each and in order, whatever becomes of the workers."""

import pytest

from slipstream.router.dispatch.table.actions import EmitScores, Finish
from slipstream.router.protocol.generation import GenerateRequest, InvalidRequestError
from slipstream.router.protocol.messages import (
    Cancel,
    Credits,
    Generate,
    Prefill,
    PromptScores,
    Reserve,
    Reserved,
    SamplingParams,
)
from slipstream.router.protocol.messages.prompt_scores import ScoredToken, ScoredTokens
from tests.support.router.dispatcher_lab import CONFIG, D, Lab, P, ticket

NUM_TOP = 2


def scored(first: int, end: int) -> ScoredTokens:
    return ScoredTokens.of(
        first, [ScoredToken(-0.5 * at, at, ((at, -0.25), (at + 1, -0.5))) for at in range(first, end)], NUM_TOP
    )


def lab_with(num_prompt: int, max_tokens: int = 4, *, prefill: bool = False) -> Lab:
    lab = Lab(CONFIG)
    lab.join(D, "decode")
    if prefill:
        lab.join(P, "prefill")
    sampling = SamplingParams(max_tokens, prompt_logprobs=NUM_TOP)
    lab.do(lab.dispatcher.submit(GenerateRequest("r", [7] * num_prompt, sampling), lab.now))
    return lab


def say(lab: Lab, peer, first: int, end: int, attempt: int = 0) -> None:
    lab.say(peer, PromptScores("r", attempt, scored(first, end)))


def emitted(lab: Lab) -> list[int]:
    """The tokens whose log-probabilities went to the client."""
    parts = [action.scores for action in lab.take() if isinstance(action, EmitScores)]
    for part in parts:
        assert [*part.tokens()] == [*scored(part.first, part.end).tokens()]
    return [at for part in parts for at in range(part.first, part.end)]


def test_they_pass_in_order_and_repeated_ones_once():
    lab = lab_with(9)
    say(lab, D, 1, 4)
    say(lab, D, 1, 4)
    say(lab, D, 3, 9)
    assert emitted(lab) == [1, 2, 3, 4, 5, 6, 7, 8]
    lab.chunk(D, "r", 0, 5)
    say(lab, D, 2, 4)  # by a worker that has preempted it
    assert emitted(lab) == []
    assert lab.phase("r") == "decode"


@pytest.mark.parametrize(
    "wrong",
    [
        scored(3, 5),  # the first two are missing
        scored(1, 12),  # more than there are
        scored(0, 2),  # the first token has none
        scored(1, 5)._replace(packed=scored(1, 5).packed[:-4]),
        scored(1, 5)._replace(num_top=-1),
        ScoredTokens.of(1, [ScoredToken(-1.0, 1, ((-3, -1.0), (4, -2.0)))], NUM_TOP),
    ],
)
def test_what_cannot_be_true_fails_the_attempt(wrong):
    lab = lab_with(9)
    lab.take()
    lab.say(D, PromptScores("r", 0, wrong))
    assert (D, Cancel) in lab.kinds()
    assert lab.dispatcher.history.get("r").num_retries == 1


def test_a_first_token_before_them_fails_the_attempt():
    lab = lab_with(9)
    say(lab, D, 1, 6)
    lab.chunk(D, "r", 0, 5)
    assert lab.dispatcher.history.get("r").num_retries == 1


def test_the_next_attempt_is_asked_for_the_missing_ones_alone():
    lab = lab_with(9)
    say(lab, D, 1, 6)
    lab.do(lab.dispatcher.worker_lost(D, lab.now))
    assert emitted(lab) == [1, 2, 3, 4, 5]
    other = D._replace(name="d2") if hasattr(D, "_replace") else type(D)("d2", 1)
    lab.join(other, "decode")
    [request] = [message.request for _, kind, message in lab.sent() if kind is Generate]
    assert (request.attempt, request.num_scored) == (1, 5)
    say(lab, other, 6, 9, attempt=1)
    assert emitted(lab) == [6, 7, 8]
    lab.chunk(other, "r", 0, 5, attempt=1)
    assert lab.phase("r") == "decode"


def test_a_prefill_group_tells_them_although_the_decode_worker_has_the_prompt_cached():
    lab = lab_with(20, prefill=True)
    assert (D, Reserve) in lab.kinds()
    lab.say(D, Reserved("r", 0, 16, ticket()))  # so much that it would compute the rest itself
    assert (P, Prefill) in lab.kinds()
    say(lab, P, 1, 20)
    assert emitted(lab) == [*range(1, 20)]
    lab.chunk(P, "r", 0, 5)
    assert lab.phase("r") == "transfer"


def test_a_request_without_output_stays_at_a_decode_worker_and_ends_with_its_prompt():
    lab = lab_with(20, max_tokens=0, prefill=True)
    assert lab.kinds() == [(D, Generate)]
    say(lab, D, 1, 20)
    lab.take()
    lab.chunk(D, "r", 0, finish="length")
    [finish] = [action.finish for action in lab.take() if isinstance(action, Finish)]
    assert (finish.reason, finish.usage.num_output_tokens) == ("length", 0)
    [decision] = lab.dispatcher.history.get("r").decisions
    assert decision.reason == "prompt_only"
    lab.say(D, Credits(1, 4, 100, 1000))


def test_an_end_before_them_is_none():
    lab = lab_with(9, max_tokens=0)
    lab.chunk(D, "r", 0, finish="length")
    assert lab.dispatcher.history.get("r").num_retries == 1


def test_workers_that_do_not_know_the_field_are_not_asked():
    lab = Lab(CONFIG)
    lab.join(D, "decode", version=4)
    for sampling in (SamplingParams(4, prompt_logprobs=0), SamplingParams(0)):
        with pytest.raises(InvalidRequestError, match=r"not served while d is of Slipstream 0\.1\.0"):
            lab.dispatcher.submit(GenerateRequest("r", [7] * 9, sampling), lab.now)


def test_the_packed_form_holds_what_it_was_made_of():
    tokens = [ScoredToken(-1.5, 3, ((7, -0.25), (9, -0.5))), ScoredToken(-0.25, 1, ((4, -0.25), (5, -3.0)))]
    packed = ScoredTokens.of(4, tokens, 2)
    assert [*packed.tokens()] == tokens
    assert (packed.num_tokens, packed.end, packed.flaw) == (2, 6, "")
    assert packed.since(4) is packed
    assert packed.since(6) is None
    rest = packed.since(5)
    assert rest is not None
    assert (rest.first, [*rest.tokens()]) == (5, tokens[1:])
