"""A dispatcher whose events and time a test makes, and two workers for it."""

from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId, TransferAddress
from slipstream.router.config.router_config import DispatchConfig
from slipstream.router.dispatch.dispatcher import Dispatcher
from slipstream.router.dispatch.table.actions import Send
from slipstream.router.protocol.generation import (
    GenerateRequest,
)
from slipstream.router.protocol.messages import (
    Credits,
    Reserved,
    SamplingParams,
    StepOutput,
    TokenChunk,
)
from tests.support.router.greetings import make_hello

D, P = PeerId("d", 1), PeerId("p", 1)
CONFIG = DispatchConfig(local_prefill_max_tokens=10, max_queued_requests=3, max_attempts=3)


class Lab:
    """A dispatcher and its clock. `take` and `sent` return what has happened since they were called last."""

    def __init__(self, config=CONFIG):
        self.dispatcher = Dispatcher(config)
        self.now = 0.0
        self.actions = []

    def do(self, actions):
        self.actions += actions
        self.dispatcher.check_integrity()

    def join(self, peer, role, *, slots=4, pages=100, tokens=1000, credit=True, max_model_len=4096, **fields):
        hello = make_hello(
            peer,
            role,
            tp=2 if role == "prefill" else 1,
            num_pages=pages,
            max_slots=slots,
            max_queued_tokens=tokens,
            max_model_len=max_model_len,
            **fields,
        )
        self.do(self.dispatcher.worker_joined(hello, self.now))
        if credit:
            self.say(peer, Credits(0, slots, pages, tokens))

    def submit(self, request_id, num_prompt=5, max_tokens=10, **more):
        request = GenerateRequest(request_id, [7] * num_prompt, SamplingParams(max_tokens), **more)
        self.do(self.dispatcher.submit(request, self.now))

    def say(self, peer, message):
        self.do(self.dispatcher.worker_message(peer, message, self.now))

    def chunk(self, peer, request_id, index, *tokens, attempt=0, finish=None, cached=0):
        self.say(peer, StepOutput((TokenChunk(request_id, attempt, index, tokens, (), finish, None, cached),)))

    def tick(self, now):
        self.now = now
        self.do(self.dispatcher.tick(now))

    def take(self):
        actions, self.actions = self.actions, []
        return actions

    def sent(self):
        """(worker, message type, the message) of what was sent, other actions dropped."""
        return [(a.worker, type(a.message), a.message) for a in self.take() if isinstance(a, Send)]

    def kinds(self):
        return [(worker, kind) for worker, kind, _ in self.sent()]

    def phase(self, request_id):
        return self.dispatcher.history.get(request_id).events[-1].phase


def ticket(number=1, destination=D, num_pages=2):
    return HandoffTicket(number, destination, (TransferAddress("h", 2),), 0, num_pages, 8, 2, 2, 64)


def to_prefill(lab, request_id="r", attempt=0):
    """A long request, up to the point where the prefill group computes."""
    lab.submit(request_id, num_prompt=20)
    lab.say(D, Reserved(request_id, attempt, 0, ticket()))
    lab.take()
