"""The answer to one line of a batch: kept as a result, or a reason to try the line again later. Sans-IO."""

from __future__ import annotations

from dataclasses import dataclass

import orjson

REFUSED_FOR_NOW = frozenset({429, 503, 507})  # however often: there will be room in time, or the batch expires
FAILED_ONCE = frozenset({408, 500, 502, 504})
MAX_TRIES = 3  # of a line that fails so
RETRY_S = 1.0  # if the answer does not say after how long
MAX_RETRY_S = 60.0


@dataclass(frozen=True, slots=True)
class LineAnswer:
    """What a client would have got. `retry_after_s` None: it does not say."""

    status: int
    body: bytes  # JSON
    request_id: str
    retry_after_s: float | None = None

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_refused_for_now(self) -> bool:
        """There is no room for the line now: fewer should be served at a time."""
        return self.status in REFUSED_FOR_NOW

    @property
    def may_be_accident(self) -> bool:
        """It is worth another try."""
        return self.status in FAILED_ONCE

    @property
    def retry_in_s(self) -> float:
        """After how long a line that is refused for now is to be tried again."""
        return min(self.retry_after_s if self.retry_after_s is not None else RETRY_S, MAX_RETRY_S)

    def result(self, result_id: str, custom_id: str) -> bytes:
        """The line of the output file, or of that with errors."""
        response = {"status_code": self.status, "request_id": self.request_id, "body": orjson.Fragment(self.body)}
        return _line({"id": result_id, "custom_id": custom_id, "response": response, "error": None})


def without_answer(result_id: str, custom_id: str, code: str, message: str) -> bytes:
    """The line of the file with errors, for a line that was not served."""
    error = {"code": code, "message": message}
    return _line({"id": result_id, "custom_id": custom_id, "response": None, "error": error})


def _line(fields: dict[str, object]) -> bytes:
    return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
