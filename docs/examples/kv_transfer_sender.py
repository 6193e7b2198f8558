"""Sends pages to the program that has printed the ticket:

python docs/examples/kv_transfer_sender.py 'TICKET'
"""

import json
import queue
import sys

import numpy as np

from slipstream.kv_transfer.agent import TransferAgent
from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId, TransferAddress
from slipstream.kv_transfer.api.transfer_config import TransferConfig
from slipstream.kv_transfer.memory.host_pages import HostPagePool
from slipstream.kv_transfer.memory.pool_memory import PoolMemory

fields = json.loads(sys.argv[1])
fields[1], fields[2] = PeerId(*fields[1]), tuple(TransferAddress(*address) for address in fields[2])
ticket = HandoffTicket(*fields)
PAGES = 32  # of this program's own pool; those of the other may be more or fewer

memory = PoolMemory(ticket.num_layers * PAGES * ticket.num_kv_heads * ticket.head_bytes)
array = np.frombuffer(memory.buffer, np.uint8).reshape(ticket.num_layers, PAGES, ticket.num_kv_heads, ticket.head_bytes)
ended = queue.SimpleQueue()
agent = TransferAgent(
    HostPagePool(array, memory),
    rank=0,
    tp=1,
    peer=PeerId("sender", 1),
    config=TransferConfig(),
    on_event=ended.put,
    token="a shared secret",
)
page_ids = list(range(ticket.num_pages))
key = agent.send(ticket, page_ids)
random = np.random.default_rng(0)
for layer in range(ticket.num_layers):  # each layer leaves as soon as it is computed, while the next one is
    array[layer, page_ids] = random.integers(0, 256, array[layer, page_ids].shape, np.uint8)
    agent.pages_ready(key, layer, ticket.num_pages)
print(ended.get(timeout=60), flush=True)  # Sent, or SendFailed with its reason
print("sums of the pages:", array[:, page_ids].sum(axis=(0, 2, 3), dtype=np.int64).tolist())
agent.close()
