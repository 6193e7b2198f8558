"""Which version of a tensor model a request gets that names none. Sans-IO.

    names a version ----------------------------------------> that one
    of a sequence that has a version which still serves ----> that one
    otherwise: a number in [0, 1) from the id of the request, and in which share it lies
        0                          0.9      1
        |-------- version 1 --------|-- 2 --|

The same id gives the same version, at every router. Where the share of the highest version grows, requests only move to
it. Versions that do not serve have no part: those that are left divide their requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from xxhash import xxh3_64_intdigest

from slipstream.router.tensors.infer_request import InferRequest, SequenceFlags

MAX_SEQUENCES = 65_536
NUM_DIGESTS = 1 << 64


@dataclass(frozen=True, slots=True)
class Chosen:
    """`reason` is for people. `version` "": the highest one."""

    version: str
    reason: str


class VersionChoice:
    """By a split (None: the highest version) in which `without` has no part. `before` is what served before the split:
    sequences that are not known here have begun there. `sequences` has the versions of the others that have begun."""

    def __init__(self, split: Mapping[str, float] | None, without: str = "", before: str = "") -> None:
        self._split = split
        self._without = without
        self._before = before
        self._num_unnamed = 0
        self.sequences: OrderedDict[int | str, str] = OrderedDict()

    def choose(self, request: InferRequest, serving: Collection[str]) -> Chosen:
        sequence = request.sequence
        if sequence is not None:
            return self._of_sequence(request, sequence, serving)
        return self._by_id(self._id_of(request), serving)

    def _of_sequence(self, request: InferRequest, sequence: SequenceFlags, serving: Collection[str]) -> Chosen:
        key = sequence.correlation_id
        kept = None if sequence.is_start else self.sequences.get(key, self._before)
        if kept and kept in serving:
            chosen = Chosen(kept, "that of its sequence")
        else:
            chosen = self._by_id(f"sequence {key}", serving)
        if sequence.is_end:
            self.sequences.pop(key, None)
        else:
            self.sequences[key] = chosen.version
            self.sequences.move_to_end(key)
            if len(self.sequences) > MAX_SEQUENCES:
                self.sequences.popitem(last=False)
        return chosen

    def _by_id(self, request_id: str, serving: Collection[str]) -> Chosen:
        split = self._split
        if split is not None:
            shares = {version: split[version] for version in sorted(split, key=int) if version in serving}
            total = sum(shares.values())
            if total > 0:
                version = _at(position_of(request_id) * total, shares)
                return Chosen(version, f"split: {100 * shares[version] / total:g} %")
        others = [version for version in serving if version != self._without]
        return Chosen(max(others or serving, key=int, default=""), "the highest that serves")

    def _id_of(self, request: InferRequest) -> str:
        if request.request_id:
            return request.request_id
        self._num_unnamed += 1
        return f"#{self._num_unnamed}"


def _at(position: float, shares: Mapping[str, float]) -> str:
    """The version in whose part of the line the position lies."""
    last = ""
    for version, share in shares.items():
        if share > 0:
            last = version
            if position < share:
                break
            position -= share
    return last


def position_of(key: str) -> float:
    """A number in [0, 1)."""
    return xxh3_64_intdigest(key.encode("utf-8", "surrogateescape")) / NUM_DIGESTS
