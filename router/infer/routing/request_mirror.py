"""Copies requests to another version of a tensor model, and compares the answers. Sans-IO.

    original --of percent, by its id--> Pair --both have ended--> compared
                                         |
                                         '--the copy is not taken--> skipped

The client gets the original's answer as it comes; that of the copy is dropped. A copy has no tenant and no priority,
and is skipped where `MAX_WAITING` requests wait for the version. Both read the same inputs, which are given back when
neither needs them any more. Requests of sequences are not copied.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from xxhash import xxh3_128

from slipstream.router.infer.routing.version_choice import position_of
from slipstream.router.status.tensor_versions_status import TensorMirrorCounts
from slipstream.router.tensors.infer_error import InferError
from slipstream.router.tensors.infer_request import InferRequest, InferResponse, RequestedOutput, ResponseReceiver

MAX_WAITING = 32
PREFIX = "mirror-"


@dataclass(slots=True, eq=False)
class AnswerDigest:
    """Of the outputs of all responses to one request."""

    digest: xxh3_128 = field(default_factory=xxh3_128)
    has_ended: bool = False
    has_failed: bool = False

    def add(self, response: InferResponse) -> None:
        self.has_failed = self.has_failed or response.error is not None
        for output in sorted(response.outputs, key=lambda one: one.name):
            self.digest.update(f"{output.name} {output.datatype} {output.shape}\n".encode())
            self.digest.update(output.view)

    def end(self, *, has_failed: bool) -> None:
        self.has_ended, self.has_failed = True, self.has_failed or has_failed


@dataclass(slots=True, eq=False)
class MirrorPair:
    """An original and its copy. `receiver` is the client's."""

    mirror: RequestMirror
    receiver: ResponseReceiver
    of_original: AnswerDigest = field(default_factory=AnswerDigest)
    of_copy: AnswerDigest = field(default_factory=AnswerDigest)

    def ended(self) -> None:
        """One of the two has."""
        if self.of_original.has_ended and self.of_copy.has_ended:
            self.mirror.compare(self)


@dataclass(slots=True, eq=False)
class OriginalReceiver:
    """Gives the answer on to the client, and keeps its digest."""

    pair: MirrorPair

    def respond(self, response: InferResponse, *, is_final: bool) -> None:
        self.pair.of_original.add(response)  # before the client's side gives the outputs back
        self.pair.receiver.respond(response, is_final=is_final)
        if is_final:
            self._end(has_failed=False)

    def complete(self) -> None:
        self.pair.receiver.complete()
        self._end(has_failed=False)

    def fail(self, error: InferError) -> None:
        self.pair.receiver.fail(error)
        self._end(has_failed=True)

    def _end(self, *, has_failed: bool) -> None:
        self.pair.of_original.end(has_failed=has_failed)
        self.pair.ended()


@dataclass(slots=True, eq=False)
class CopyReceiver:
    """Drops the answer, of which it keeps the digest."""

    pair: MirrorPair

    def respond(self, response: InferResponse, *, is_final: bool) -> None:
        self.pair.of_copy.add(response)
        if response.release is not None:
            response.release()
        if is_final:
            self._end(has_failed=False)

    def complete(self) -> None:
        self._end(has_failed=False)

    def fail(self, error: InferError) -> None:
        self._end(has_failed=True)

    def _end(self, *, has_failed: bool) -> None:
        self.pair.of_copy.end(has_failed=has_failed)
        self.pair.ended()


class RequestMirror:
    def __init__(self, version: str, percent: float) -> None:
        self.version = version
        self.counts = TensorMirrorCounts(version, percent)
        self._number = 0

    def takes(self, request: InferRequest, num_waiting: int) -> bool:
        """Whether a request is to be copied, to a version for which so many wait."""
        if request.sequence is not None:
            return False
        self._number += 1
        key = request.request_id or str(self._number)
        if position_of(f"{PREFIX}{key}") >= self.counts.percent / 100:
            return False
        if num_waiting >= MAX_WAITING:
            self.counts.num_skipped += 1
            return False
        return True

    def pair(self, receiver: ResponseReceiver) -> MirrorPair:
        return MirrorPair(self, receiver)

    def copy_of(self, request: InferRequest) -> InferRequest:
        """To be submitted once the original has been taken, and before anything else happens."""
        self.counts.num_copied += 1
        outputs = tuple(RequestedOutput(one.name, one.classification) for one in request.requested)
        copy = InferRequest(
            model=request.model,
            model_version=self.version,
            inputs=request.inputs,
            requested=outputs,
            parameters=dict(request.parameters),
            request_id=f"{PREFIX}{request.request_id or self._number}",
        )
        if request.release is not None:
            copy.release = request.release = shared_release(request.release)
        return copy

    def refused(self) -> None:
        """The copy was not taken."""
        self.counts.num_copied -= 1
        self.counts.num_skipped += 1

    def compare(self, pair: MirrorPair) -> None:
        counts = self.counts
        counts.num_failed += pair.of_copy.has_failed
        if not pair.of_copy.has_failed and not pair.of_original.has_failed:
            counts.num_compared += 1
            counts.num_equal += pair.of_copy.digest.digest() == pair.of_original.digest.digest()


def shared_release(release: Callable[[], None]) -> Callable[[], None]:
    """To be called by each of two; the second call releases."""
    num_left = 2

    def release_one() -> None:
        nonlocal num_left
        num_left -= 1
        if num_left == 0:
            release()

    return release_one
