"""A decode worker in one file, which imports nothing of Slipstream: it answers with the tokens of the prompt, in turn.

    python echo_worker.py HOST:PORT MODEL          (the secret is in SLIPSTREAM_WORKER_TOKEN)

It speaks version 6 of the protocol (docs/protocol/README.md). The token at position i of an answer follows from the
prompt and i alone, so an answer that was begun by another worker goes on as it would have there. It needs `msgpack`.
"""

import asyncio
import os
import signal
import struct
import sys
import time
from array import array
from functools import partial

import msgpack

VERSION, OLDEST_VERSION = 6, 5
HELLO, CREDITS, STEP_OUTPUT, FAILED, PONG = 1, 2, 4, 6, 8
WELCOME, REJECTED, GENERATE, CANCEL, PING, DRAIN, POSTPONED = 32, 33, 34, 38, 40, 41, 47
PAGE_TOKENS, NUM_PAGES, MAX_SLOTS, MAX_QUEUED_TOKENS, MAX_MODEL_LEN = 16, 4096, 32, 65536, 4096
STEP_S = 0.005  # every 5 ms each sequence gets a token


class Sequence:
    """A request that is being answered. Pages for all that it may become are taken at once."""

    def __init__(self, request):
        self.request_id, self.attempt, prompt, output, sampling = request[:5]
        self.prompt_ids = array("i", prompt)
        self.num_output = len(output) // 4  # int32; tokens that earlier attempts have made
        self.max_tokens = min(sampling[0], MAX_MODEL_LEN - len(self.prompt_ids))
        self.min_tokens, self.stop_token_ids = sampling[1], frozenset(sampling[12])
        self.pages = -(-(len(self.prompt_ids) + self.max_tokens) // PAGE_TOKENS)

    def next_chunk(self):
        """(request, attempt, index, tokens, logprobs, finish reason, token that stopped it) of one step."""
        index, self.num_output = self.num_output, self.num_output + 1
        token_id = self.prompt_ids[index % len(self.prompt_ids)]
        is_stop = token_id in self.stop_token_ids and index >= self.min_tokens
        finish = "stop" if is_stop else "length" if self.num_output >= self.max_tokens else None
        return self.request_id, self.attempt, index, (token_id,), (), finish, token_id if is_stop else None


class EchoWorker(asyncio.Protocol):
    """One connection to the router. When it ends, all that was begun on it is forgotten."""

    def __init__(self, model, epoch):
        self.model, self.epoch = model, epoch
        self.sequences = {}  # by request and attempt
        self.last_seq, self.is_draining, self.refusal, self.buffer = 0, False, None, b""
        self.over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport
        me, secret = ("echo", self.epoch), os.environ["SLIPSTREAM_WORKER_TOKEN"]
        sizes = PAGE_TOKENS, NUM_PAGES, MAX_SLOTS, MAX_QUEUED_TOKENS, MAX_MODEL_LEN
        builds = ("",) * 7, (0, 0, 0, 0, "", "")  # it does not say how it computes, nor what a page is made of
        more = 2048, False, "", OLDEST_VERSION, *builds, None, True  # no prefix cache; pages for the whole output
        nowhere = (("127.0.0.1", 1),)  # it never exchanges pages
        self.send(HELLO, VERSION, secret, me, "decode", self.model, 1, os.getpid(), nowhere, *sizes, *more)

    def send(self, *message):
        payload = msgpack.packb(message)
        self.transport.write(struct.pack("<I", len(payload)) + payload)

    def data_received(self, data):
        self.buffer += data
        while len(self.buffer) >= 4 + (size := int.from_bytes(self.buffer[:4], "little")):
            payload, self.buffer = self.buffer[4 : 4 + size], self.buffer[4 + size :]
            try:
                self.handle(*msgpack.unpackb(payload, use_list=False))
            except (ValueError, TypeError, msgpack.UnpackException):  # the router would not send it: begin anew
                self.transport.abort()

    def handle(self, code, *fields):
        if code == WELCOME:
            self.send_credits()
        elif code == REJECTED:
            self.refusal = fields[0]
        elif code == PING:
            self.send(PONG, fields[0])
        elif code == GENERATE:
            self.last_seq = fields[0]
            self.begin(Sequence(fields[1]))
        elif code == CANCEL:
            self.sequences.pop(fields[:2], None)
            self.send_credits()
        elif code == DRAIN:
            self.drain()
        # Other messages are about what its greeting has not offered, or newer than this worker.

    def begin(self, sequence):
        if not sequence.prompt_ids or sequence.num_output >= sequence.max_tokens:
            reason = f"a prompt of {len(sequence.prompt_ids)} tokens leaves no room for an answer"
            self.send(FAILED, sequence.request_id, sequence.attempt, reason, False)
        else:
            self.sequences[sequence.request_id, sequence.attempt] = sequence
        self.send_credits()

    def step(self):
        chunks = [sequence.next_chunk() for sequence in self.sequences.values()]
        if chunks:
            self.send(STEP_OUTPUT, chunks)
        ended = [chunk[:2] for chunk in chunks if chunk[5] is not None]
        for key in ended:
            del self.sequences[key]
        if ended:
            self.send_credits()
        if self.is_draining and not self.sequences:
            self.transport.close()

    def send_credits(self):
        pages = NUM_PAGES - sum(sequence.pages for sequence in self.sequences.values())
        slots = 0 if self.is_draining else MAX_SLOTS - len(self.sequences)
        self.send(CREDITS, self.last_seq, slots, pages, MAX_QUEUED_TOKENS)

    def drain(self):
        self.is_draining = True
        self.send_credits()

    def connection_lost(self, error):
        self.over.set_result(None)


async def main(address, model):
    host, port = address.rsplit(":", 1)
    loop, current, ends = asyncio.get_running_loop(), None, False
    epoch = int(time.time() * 1000)  # later than that of any worker of this name before

    def end():
        nonlocal ends
        ends = True
        if current is not None:
            current.drain()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)
    while not ends:
        epoch += 1
        try:
            _, current = await loop.create_connection(partial(EchoWorker, model, epoch), host, int(port))
        except OSError:
            await asyncio.sleep(0.5)
            continue
        while not current.over.done():
            await asyncio.sleep(STEP_S)
            current.step()
        if current.refusal is not None:
            sys.exit(f"the router refuses this worker: {current.refusal}")
        ends = ends or current.is_draining


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
