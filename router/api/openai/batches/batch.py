"""The state of a batch. Sans-IO: each step takes the time and returns the next state.

validating --begun--> in_progress --finalizing--> finalizing --ended--> completed, or expired
    |   |                  |                                            if not all lines were served in time
    |   '--cancelling--> cancelling --ended--> cancelled
    '--refused--> failed            (also from in_progress, if there is no room for the results)
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import orjson

from slipstream.router.store.store_errors import StoreError
from slipstream.router.store.stored_object import StoredObject

KIND = "batch"

BatchStatus = Literal[
    "validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"
]
FINAL: frozenset[BatchStatus] = frozenset({"completed", "failed", "expired", "cancelled"})
CANCELLABLE: frozenset[BatchStatus] = frozenset({"validating", "in_progress", "cancelling"})
TIMES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
PRIVATE = ("owner", "key_digest", "output_expires_after_s", "num_total", "num_completed", "num_failed")


@dataclass(frozen=True, slots=True)
class BatchProblem:
    """A mistake in the input, or the reason why the batch failed. `line` counts from 1; None: of no line."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """`owner` is the tenant; `key_digest`, in hexadecimal, is that of the key that it was created with ("": there are
    no keys). All times are in seconds since the epoch."""

    id: str
    owner: str
    key_digest: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    metadata: dict[str, str] | None = None
    output_expires_after_s: int | None = None
    status: BatchStatus = "validating"
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    num_total: int = 0
    num_completed: int = 0
    num_failed: int = 0
    problems: tuple[BatchProblem, ...] = ()

    @classmethod
    def of(cls, stored: StoredObject) -> Batch:
        """Without what a later version of this software has added. Raises StoreError if it is no batch."""
        try:
            fields = known_fields(cls, orjson.loads(stored.body))
            problems = tuple(BatchProblem(**known_fields(BatchProblem, one)) for one in fields["problems"])
            return cls(**fields | {"problems": problems})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreError(f"the batch {stored.id} cannot be read: {error!r}") from error

    def stored(self, blob_bytes: int) -> StoredObject:
        """The object in the store; `blob_bytes` are those of the files that the batch works with. It stays there as
        long as it is not over."""
        num_bytes = 0 if self.is_over else blob_bytes
        body = orjson.dumps(asdict(self))
        return StoredObject(
            KIND, self.id, self.owner, self.created_at, body, blob_bytes=num_bytes, is_pinned=not self.is_over
        )

    @property
    def is_over(self) -> bool:
        return self.status in FINAL

    @property
    def coming_output_id(self) -> str:
        """The id that the file of results gets."""
        return f"file-{self.id.removeprefix('batch_')}-output"

    @property
    def coming_errors_id(self) -> str:
        """The id that the file of failed requests gets."""
        return f"file-{self.id.removeprefix('batch_')}-errors"

    def begun(self, num_total: int, now: float) -> Batch:
        """The input is as it should be."""
        if self.status != "validating":
            return self
        return replace(self, status="in_progress", in_progress_at=int(now), num_total=num_total)

    def refused(self, problems: tuple[BatchProblem, ...], now: float) -> Batch:
        """It cannot be served."""
        return replace(self, status="failed", failed_at=int(now), problems=problems)

    def counted(self, num_completed: int, num_failed: int) -> Batch:
        """So many lines have a result by now."""
        return replace(self, num_completed=num_completed, num_failed=num_failed)

    def cancelling(self, now: float) -> Batch:
        """Its creator does not want the rest. Only for a `CANCELLABLE` one."""
        if self.status == "cancelling":
            return self
        return replace(self, status="cancelling", cancelling_at=int(now))

    def finalizing(self, now: float) -> Batch:
        """No further line is served; the results are put in order."""
        if self.status != "in_progress":
            return self
        return replace(self, status="finalizing", finalizing_at=int(now))

    def ended(self, now: float, problems: tuple[BatchProblem, ...] = ()) -> Batch:
        """The results are there."""
        output = self.coming_output_id if self.num_completed else None
        errors = self.coming_errors_id if self.num_failed else None
        ended = replace(self, output_file_id=output, error_file_id=errors)
        if problems:
            return ended.refused(problems, now)
        if self.status == "cancelling":
            return replace(ended, status="cancelled", cancelled_at=int(now))
        if self.expired_at is not None:
            return replace(ended, status="expired")
        return replace(ended, status="completed", completed_at=int(now))

    def late(self, now: float) -> Batch:
        """Its time is over before all lines were served. The others get results that say so."""
        return replace(self, expired_at=int(now)) if self.status == "in_progress" else self

    def shown(self) -> dict[str, Any]:
        """OpenAI's batch object."""
        fields = {name: value for name, value in asdict(self).items() if name not in PRIVATE}
        problems = fields.pop("problems")
        errors = {"object": "list", "data": problems} if problems else None
        counts = {"total": self.num_total, "completed": self.num_completed, "failed": self.num_failed}
        return {"object": "batch", **fields, "errors": errors, "request_counts": counts}


def known_fields(of: type[Batch | BatchProblem], found: dict[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in of.__dataclass_fields__ if name in found}
