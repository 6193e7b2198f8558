"""Files that other processes have made, mapped once each."""

from __future__ import annotations

from slipstream.router.tensor_memory.shared_file import PREFIX, MappedRegion, map_file
from slipstream.router.tensors.tensor import RegionSlice

MAX_FILES = 1024


class MappedFiles:
    """Finds places by the key of their file. Only files of Slipstream are remembered, since their names are never used
    twice. A client may give the name of its memory to another one."""

    def __init__(self) -> None:
        self._regions: dict[str, MappedRegion] = {}  # the one used last stands last

    def __len__(self) -> int:
        return len(self._regions)

    def place(self, key: str, offset: int, num_bytes: int) -> RegionSlice:
        """Raises ValueError if the file does not have such a place, and OSError if there is no such file."""
        region = self._region(key)
        if offset < 0 or num_bytes < 0 or offset + num_bytes > region.num_bytes:
            raise ValueError(f"{key}: {num_bytes} bytes at {offset} do not lie within its {region.num_bytes} bytes")
        return RegionSlice(region, offset, num_bytes)

    def forget(self, prefix: str) -> None:
        """The process whose files have this prefix is gone."""
        for key in [key for key in self._regions if key.startswith(prefix)]:
            self._regions.pop(key).is_named = False

    def forget_file(self, key: str) -> bool:
        """One file has no name any more. Whether it was known as one of Slipstream, whose process is ending."""
        region = self._regions.pop(key, None)
        if region is not None:
            region.is_named = False
        return region is not None or key.startswith(PREFIX)

    def _region(self, key: str) -> MappedRegion:
        region = self._regions.pop(key, None)
        if region is None:
            region = map_file(key)
            if not key.startswith(PREFIX):
                return region
            if len(self._regions) >= MAX_FILES:
                del self._regions[next(iter(self._regions))]
        self._regions[key] = region
        return region
