"""Shared memory of clients on this host: registered by name, read for inputs and written for outputs in place."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slipstream.router.tensor_memory.shared_file import PREFIX, SHM
from slipstream.router.tensors.infer_error import InferError, InferErrorCode
from slipstream.router.tensors.tensor import RegionSlice


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class ClientFile:
    """All of a file in /dev/shm. The memory stays mapped, and the file open, for as long as something refers to it."""

    key: str
    memory: mmap.mmap
    view: memoryview
    descriptor: int

    def __post_init__(self) -> None:
        weakref.finalize(self, os.close, self.descriptor)

    @property
    def is_named(self) -> bool:
        """Its client keeps the file for as long as a request uses it."""
        return True

    @property
    def num_bytes(self) -> int:
        """How long the file is now: to touch what its owner has cut off would end this process."""
        return self.memory.size()

    def write(self, offset: int, data: memoryview) -> None:
        """Harmless where the owner has cut the file off, which a write to `view` is not. Raises OSError."""
        while data:
            num_written = os.pwrite(self.descriptor, data, offset)
            data, offset = data[num_written:], offset + num_written


@dataclass(frozen=True, slots=True)
class ClientRegion:
    """`byte_size` bytes at `offset` of a client's file. `key` is as the client has written it."""

    name: str
    key: str
    offset: int
    byte_size: int
    file: ClientFile


class ClientRegions:
    """What clients have registered with the system shared memory extension, until they unregister it. A region that
    is unregistered while requests use it stays mapped until they have ended."""

    def __init__(self, folder: Path = SHM) -> None:
        self._folder = folder
        self._regions: dict[str, ClientRegion] = {}

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Raises InferError: ALREADY_EXISTS, INVALID_ARG beyond the end of the file, INTERNAL if it cannot be had."""
        if name in self._regions:
            message = f"shared memory region '{name}' already in manager"
            raise InferError(message, InferErrorCode.ALREADY_EXISTS)
        file = self._mapped(key)
        if byte_size < 1 or offset + byte_size > len(file.view):
            raise InferError(f"failed to register shared memory region '{name}': invalid args")
        self._regions[name] = ClientRegion(name, key, offset, byte_size, file)

    def unregister(self, name: str = "") -> None:
        """One region, or all; one that is not registered is none."""
        if name:
            self._regions.pop(name, None)
        else:
            self._regions.clear()

    def status(self, name: str = "") -> Sequence[ClientRegion]:
        """One region, or all in the order of their names. Raises NOT_FOUND."""
        if not name:
            return [region for _, region in sorted(self._regions.items())]
        if name not in self._regions:
            message = f"Unable to find system shared memory region: '{name}'"
            raise InferError(message, InferErrorCode.NOT_FOUND)
        return [self._regions[name]]

    def slice_of(self, name: str, offset: int, num_bytes: int) -> RegionSlice:
        """A part of a region. Raises NOT_FOUND, INVALID_ARG, and INTERNAL if its file has become shorter."""
        region = self._regions.get(name)
        if region is None:
            raise InferError(f"Unable to find shared memory region: '{name}'", InferErrorCode.NOT_FOUND)
        if not 0 <= offset < region.byte_size:
            raise InferError(f"Invalid offset for shared memory region: '{name}'")
        if num_bytes < 1 or offset + num_bytes > region.byte_size:
            raise InferError(f"Invalid offset + byte size for shared memory region: '{name}'")
        if region.file.num_bytes < region.offset + region.byte_size:
            raise InferError(f"Invalid shared memory region: '{region.key}'", InferErrorCode.INTERNAL)
        return RegionSlice(region.file, region.offset + offset, num_bytes)

    def _mapped(self, key: str) -> ClientFile:
        name = key.removeprefix("/")
        unusable = InferError(f"Unable to open shared memory region: '{key}'", InferErrorCode.INTERNAL)
        if not name or "/" in name or "\0" in name or name in (".", "..") or name.startswith(PREFIX):
            raise unusable
        try:
            fd = os.open(self._folder / name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise unusable from error
        try:
            memory = mmap.mmap(fd, 0)
        except (OSError, ValueError) as error:  # ValueError: it is empty
            os.close(fd)
            raise InferError(f"Invalid shared memory region: '{key}'", InferErrorCode.INTERNAL) from error
        return ClientFile(name, memory, memoryview(memory), fd)
