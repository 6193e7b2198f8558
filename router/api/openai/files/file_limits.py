"""What files and batches have in common: how long what they keep may live, and how a file is missed."""

from __future__ import annotations

from slipstream.router.http.http_error import HttpError
from slipstream.router.protocol.model_id import ModelId

MIN_EXPIRY_S, MAX_EXPIRY_S = 3600, 30 * 86_400  # as at OpenAI
MAX_NAME_CHARS = 256
NO_MODEL = ModelId("", "")  # of an exchange that makes a file or a batch


def no_file(file_id: str, param: str = "file_id") -> HttpError:
    return HttpError(404, f"There is no file {file_id[:MAX_NAME_CHARS]!r}.", param=param, code="file_not_found")
