"""Which layers share a page: layers of one window, so that a page can be given back when the window has passed it.

A page holds `num_slots` layers of a *group*; a block of `page_tokens` tokens takes a page in each group. All groups
share one pool, `[slots, pages, units, unit_bytes]`:

    layers      0: window   1: all   2: window   3: all   4: window   5: all     windows (None, 128), 3 slots
    group 0                 slot 0               slot 1               slot 2
    group 1     slot 0               slot 1               slot 2

The layers of one window are dealt out to its groups in turn, so that the layers of a slot are computed one soon after
the other: pages that are sent leave slot by slot. The idea is that of vLLM's hybrid KV cache manager.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

# A page of a layer with a window counts as so much of one that stays: sequences are many windows long.
WINDOW_WEIGHT = 1 / 16
MAX_LONG_WASTE = 1.05  # that fewer and larger groups may cost sequences of many windows
MAX_SHORT_WASTE = 1.15  # ... and those within the window


@dataclass(frozen=True, slots=True)
class PageGroups:
    """`windows` are those of the groups (None: its layers see all), groups without a window first. `places` says for
    each layer that stores something which group and which slot of its pages hold it."""

    windows: tuple[int | None, ...]
    num_slots: int
    places: tuple[tuple[int, int], ...]

    @property
    def is_single(self) -> bool:
        """Whether a page holds all layers, in their order."""
        return len(self.windows) == 1

    @property
    def num_full(self) -> int:
        """Groups whose layers see all keys."""
        return self.windows.count(None)

    @staticmethod
    def single(num_layers: int, window: int | None = None) -> PageGroups:
        """All layers in one group. Pages can be given back if all of them have at most this `window`."""
        return PageGroups((window,), num_layers, tuple((0, layer) for layer in range(num_layers)))

    @staticmethod
    @lru_cache(maxsize=64)
    def of(windows: tuple[int | None, ...]) -> PageGroups:
        """The groups of layers with these windows. They follow from the windows alone, so all workers have the same.
        The groups are as few and large as costs little: see `MAX_LONG_WASTE`."""
        layers_of = {window: [i for i, own in enumerate(windows) if own == window] for window in _in_order(windows)}
        if len(layers_of) < 2:
            return PageGroups.single(len(windows), windows[0] if windows else None)
        num_slots = max(
            n
            for n in range(1, len(windows) + 1)
            if _cost(n, layers_of, WINDOW_WEIGHT) <= MAX_LONG_WASTE * _cost(1, layers_of, WINDOW_WEIGHT)
            and _cost(n, layers_of, 1.0) <= MAX_SHORT_WASTE * len(windows)
        )
        group_windows: list[int | None] = []
        places = [(0, 0)] * len(windows)
        for window, layers in layers_of.items():
            num_groups = -(-len(layers) // num_slots)
            for at, layer in enumerate(layers):
                places[layer] = (len(group_windows) + at % num_groups, at // num_groups)
            group_windows += [window] * num_groups
        return PageGroups(tuple(group_windows), num_slots, tuple(places))

    def last_layers(self) -> tuple[tuple[int, ...], ...]:
        """For each layer, in the order in which they are computed, the slots that are complete after it."""
        last = {slot: layer for layer, (_, slot) in enumerate(self.places)}
        return tuple(tuple(slot for slot, at in last.items() if at == layer) for layer in range(len(self.places)))


def _in_order(windows: tuple[int | None, ...]) -> list[int | None]:
    """No window first, then the widest."""
    return sorted(set(windows), key=lambda window: (window is not None, -(window or 0)))


def _cost(num_slots: int, layers_of: dict[int | None, list[int]], window_weight: float) -> float:
    """Slots of all groups; those of groups with a window weigh less. It is least with one slot, where no group has room
    for a layer that is not there."""
    weighted = 0.0
    for window, layers in layers_of.items():
        weighted += -(-len(layers) // num_slots) * (1.0 if window is None else window_weight)
    return num_slots * weighted
