"""What a router and the keeper say to each other, over a Unix socket (SOCK_SEQPACKET, SCM_RIGHTS):

    router -> keeper   HELLO                       with the number of its place: each of several fronts has its own
    keeper -> router   (LISTENING | WORKERS | CONNECTION)* READY
    router -> keeper   LISTENING, WORKERS, CONNECTION, FORGET, FAREWELL        with a number that the router gives

Where the connection breaks while the router lives, it makes another one and says AGAIN. Then it gets the same without
the descriptors, and tells what has changed.
"""

from __future__ import annotations

import struct
from enum import IntEnum

MESSAGE = struct.Struct("<BxxxxxxxQ")  # kind, number
GREETING = struct.Struct("<BxxxIQ")  # kind, how many fronts its router has (0: it does not say), number of the place
MAX_FDS = 2  # in a message
PATIENCE_S = 10.0  # of both sides with each other, till all that is kept has been handed over


class Kind(IntEnum):
    """Of a message."""

    LISTENING = 1  # for clients, with the socket
    CONNECTION = 2  # with the socket and its journal
    READY = 3  # that was all
    FORGET = 4
    FAREWELL = 5  # the router ends in order: nobody comes after it
    HELLO = 6
    WORKERS = 7  # the socket that listens for workers
    AGAIN = 8  # instead of HELLO, of a router that has the place
