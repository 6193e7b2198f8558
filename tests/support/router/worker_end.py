"""A worker's end of its connection to a router, moved by the test."""

import asyncio
from dataclasses import replace

from slipstream.kv_transfer.api.ticket import PeerId
from slipstream.router.protocol.messages import Credits, Ping, Pong, ServiceLevel, StepOutput, TokenChunk, Welcome
from slipstream.router.protocol.wire import FrameProtocol
from tests.support.router.greetings import make_hello

TOKEN = "secret"


def hello(name="d", epoch=1, **changes):
    return replace(make_hello(PeerId(name, epoch), token=TOKEN, max_model_len=1600), **changes)


class WorkerEnd:
    """A worker's connection, moved by the test."""

    def __init__(self):
        self.inbox = asyncio.Queue()
        self.lost = asyncio.get_running_loop().create_future()
        self.protocol = FrameProtocol(self._received, self.lost.set_result)
        self.send = self.protocol.send

    def _received(self, message):
        if not isinstance(message, ServiceLevel):
            self.inbox.put_nowait(message)

    @classmethod
    async def connect(cls, service, greeting=None):
        end = cls()
        await asyncio.get_running_loop().create_connection(lambda: end.protocol, *service.worker_port.address)
        if greeting is not None:
            end.send(greeting)
        return end

    @classmethod
    async def join(cls, service, greeting=None):
        greeting = greeting or hello()
        end = await cls.connect(service, greeting)
        assert isinstance(await end.inbox.get(), Welcome)
        end.send(Credits(0, greeting.max_slots, greeting.num_pages, greeting.max_queued_tokens))
        return end

    async def next(self, kind):
        """The next message, which must be of this kind; pings are answered."""
        while isinstance(message := await self.inbox.get(), Ping):
            self.send(Pong(message.nonce))
        assert isinstance(message, kind), message
        return message

    def chunk(self, request_id, index, *tokens, attempt=0, finish=None, logprobs=()):
        self.send(StepOutput((TokenChunk(request_id, attempt, index, tokens, logprobs, finish),)))


async def until(condition):
    """Lets the loop turn until something has become true, which the test's time-out bounds."""
    while not condition():
        await asyncio.sleep(0)
