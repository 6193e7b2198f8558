"""How many clients are connected to each front, in memory that all fronts share: the limit is one for all of them.

A message to the dispatcher and back would come too late: a client is rejected at the moment when it connects. Each
front writes its own number and reads all of them; two fronts may both accept a client at the same moment.
"""

from __future__ import annotations

import mmap
import os

NUMBER_BYTES = 8


class ConnectionCounts:
    """`fd` is to be inherited by the fronts. The memory is freed when all its processes have ended."""

    def __init__(self, num_fronts: int) -> None:
        self.fd = os.memfd_create("slipstream-connections")
        os.ftruncate(self.fd, num_fronts * NUMBER_BYTES)
        self._free = set(range(num_fronts))
        self._numbers = _numbers(self.fd, num_fronts)

    def take_cell(self) -> int:
        """The cell of a new front."""
        return self._free.pop()

    def give_back(self, cell: int) -> None:
        """A front has ended, with all its connections."""
        self._numbers[cell] = 0
        self._free.add(cell)

    def close(self) -> None:
        self._numbers.release()
        os.close(self.fd)


class SharedConnectionCount:
    """A front's own number among those of all. `fd` is that of `ConnectionCounts`, and is closed here."""

    def __init__(self, fd: int, cell: int) -> None:
        num_fronts = os.fstat(fd).st_size // NUMBER_BYTES
        self._numbers = _numbers(fd, num_fronts)
        self._cell = cell
        os.close(fd)

    def set(self, num_connections: int) -> int:
        """Returns those of all fronts together."""
        self._numbers[self._cell] = num_connections
        return sum(self._numbers)


def _numbers(fd: int, count: int) -> memoryview:
    return memoryview(mmap.mmap(fd, count * NUMBER_BYTES)).cast("q")
