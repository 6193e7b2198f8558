"""What requests may ask of the workers of a model."""

import pytest

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.protocol.generation import GenerateRequest, InvalidRequestError
from slipstream.router.protocol.messages import SamplingParams
from slipstream.router.protocol.older_peers import VERSION_OF_0_1_0
from slipstream.router.registry.worker_abilities import WorkerAbilities
from tests.support.router.dispatcher_lab import Lab


def test_processors_are_those_that_every_worker_knows_and_end_tokens_those_of_any():
    lab = Lab()
    registry = lab.dispatcher.registry
    assert registry.abilities == WorkerAbilities(False, (), ())
    lab.join(PeerId("d", 1), "decode", logits_processors=("a", "b"), end_token_ids=(3, 7))
    assert registry.abilities == WorkerAbilities(True, (3, 7), ("a", "b"))
    lab.join(PeerId("p", 1), "prefill", logits_processors=("b", "c"), end_token_ids=(3,))
    assert registry.abilities == WorkerAbilities(True, (3, 7), ("b",))
    lab.dispatcher.worker_lost(PeerId("p", 1), 0.0, "gone")
    assert registry.abilities == WorkerAbilities(True, (3, 7), ("a", "b"))


def test_ends_are_known_unless_all_workers_are_too_old_to_say_theirs():
    lab = Lab()
    lab.join(PeerId("d", 1), "decode", version=VERSION_OF_0_1_0)
    assert not lab.dispatcher.registry.abilities.says_ends
    lab.join(PeerId("e", 1), "decode", end_token_ids=(3,))
    assert lab.dispatcher.registry.abilities.says_ends


def test_restrictions_are_refused_while_a_worker_is_too_old_for_them():
    lab = Lab()
    lab.join(PeerId("d", 1), "decode", version=VERSION_OF_0_1_0)
    lab.submit("plain")
    request = GenerateRequest("r", [7], SamplingParams(5, bad_words=((4,),)))
    with pytest.raises(InvalidRequestError, match=r"^bad_words: not served while d is of Slipstream 0\.1\.0$"):
        lab.dispatcher.submit(request, 0.0)
