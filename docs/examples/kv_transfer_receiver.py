"""Receives pages from another program: start it first, and give the line that it prints to `kv_transfer_sender.py`.

python docs/examples/kv_transfer_receiver.py
"""

import json
import queue

import numpy as np

from slipstream.kv_transfer.agent import TransferAgent
from slipstream.kv_transfer.api.ticket import HandoffTicket, PeerId
from slipstream.kv_transfer.api.transfer_config import TransferConfig
from slipstream.kv_transfer.memory.host_pages import HostPagePool
from slipstream.kv_transfer.memory.pool_memory import PoolMemory

LAYERS, PAGES, HEADS, HEAD_BYTES = 4, 64, 2, 4096  # of the pool, which holds uint8 [layers, pages, heads, head_bytes]
NUM_PAGES = 16  # that are received
ME, SENDER = PeerId("receiver", 1), PeerId("sender", 1)  # names and epochs, which both programs know

memory = PoolMemory(LAYERS * PAGES * HEADS * HEAD_BYTES)  # the sender may read and write it if it is on this host
array = np.frombuffer(memory.buffer, np.uint8).reshape(LAYERS, PAGES, HEADS, HEAD_BYTES)
config = TransferConfig()
ended = queue.SimpleQueue()
agent = TransferAgent(
    HostPagePool(array, memory), rank=0, tp=1, peer=ME, config=config, on_event=ended.put, token="a shared secret"
)
ticket = HandoffTicket(
    transfer_id=1,
    destination=ME,
    addresses=(agent.address,),
    first_page=0,
    num_pages=NUM_PAGES,
    slab_pages=config.slab_pages,
    num_layers=LAYERS,
    num_kv_heads=HEADS,
    head_bytes=HEAD_BYTES,
)
page_ids = list(range(PAGES - NUM_PAGES, PAGES))  # where they are to land
agent.expect(ticket, page_ids, SENDER, source_tp=1)
print(json.dumps(ticket), flush=True)
print(ended.get(timeout=60), flush=True)  # Received, or ReceiveFailed with its reason
print("sums of the pages:", array[:, page_ids].sum(axis=(0, 2, 3), dtype=np.int64).tolist())
agent.close()
