"""Tokenises text without holding up the event loop."""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import tokenizers

from slipstream.router.protocol.messages import pack_ids
from slipstream.router.text.memory.prompt_memory import DEFAULT_BYTES, PromptMemory

ENCODE_THREADS = 2
NICENESS = 10  # a long prompt may take a little longer; the tokens of running streams may not


class EncodePool(ThreadPoolExecutor):
    """What the tokenizers of a process share: threads for long texts, with a lower priority than the event loop's
    thread, and the memory of prompts."""

    def __init__(self, memory: PromptMemory) -> None:
        super().__init__(ENCODE_THREADS, thread_name_prefix="tokenizer", initializer=step_back)
        self.memory = memory


def encode_pool(memory_bytes: int = DEFAULT_BYTES) -> EncodePool:
    """The pool of a process, which remembers so much of prompts."""
    # The calling thread does the work itself: the library's own threads would run at normal priority.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    return EncodePool(PromptMemory(memory_bytes))


def step_back() -> None:
    """Lowers the priority of the calling thread; on Linux each thread has one of its own."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def encode_unlocked(tokenizer: tokenizers.Tokenizer, text: str, *, add_special_tokens: bool) -> bytes:
    """The packed token ids of `text`, the same as those of `tokenizer.encode`.

    `encode` holds the interpreter's lock until it is done, so a long text would stop the event loop even if it were
    encoded in another thread. Only the library's batch calls release the lock.
    """
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    return pack_ids(encoding.ids)
