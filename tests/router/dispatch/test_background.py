"""Background work gets what requests of clients leave, and leaves some room for the next of them."""

from slipstream.router.config.router_config import DispatchConfig
from slipstream.router.protocol.messages import Credits
from tests.support.router.dispatcher_lab import D, Lab, P

CONFIG = DispatchConfig(local_prefill_max_tokens=10, max_queued_requests=100)


def begun(lab):
    return [message.request.request_id for _, _, message in lab.sent()]


def test_the_last_quarter_of_the_slots_is_for_clients():
    lab = Lab(CONFIG)
    lab.join(D, "decode", slots=8)
    lab.take()
    for number in range(8):
        lab.submit(f"line{number}", is_background=True)
    assert begun(lab) == [f"line{number}" for number in range(6)]
    lab.submit("client0")
    lab.submit("client1")
    assert begun(lab) == ["client0", "client1"]
    lab.submit("client2")
    assert begun(lab) == []
    lab.say(D, Credits(8, 2, 90, 1000))  # two have ended: one for the client, none for a line
    assert begun(lab) == ["client2"]
    lab.say(D, Credits(9, 4, 90, 1000))
    assert begun(lab) == ["line6", "line7"]


def test_a_worker_with_a_single_slot_serves_background_work_too():
    lab = Lab(CONFIG)
    lab.join(D, "decode", slots=1)
    lab.take()
    lab.submit("line", is_background=True)
    assert begun(lab) == ["line"]


def test_the_last_quarter_of_the_pages_is_for_clients():
    lab = Lab(CONFIG)
    lab.join(D, "decode", slots=64, pages=100)
    lab.say(D, Credits(0, 64, 25, 1000))
    lab.take()
    lab.submit("line", is_background=True)
    assert begun(lab) == []
    lab.submit("client")
    assert begun(lab) == ["client"]
    lab.say(D, Credits(1, 63, 60, 1000))
    assert begun(lab) == ["line"]


def test_background_prompts_wait_while_half_the_queue_of_the_prefill_group_is_taken():
    lab = Lab(CONFIG)
    lab.join(D, "decode", slots=64)
    lab.join(P, "prefill", tokens=100)
    lab.say(P, Credits(0, 0, 100, 50))
    lab.take()
    lab.submit("line", num_prompt=20, is_background=True)
    assert begun(lab) == []
    lab.submit("client", num_prompt=20)
    assert len(lab.sent()) == 1
    lab.say(P, Credits(0, 0, 100, 100))
    assert len(lab.sent()) == 1
