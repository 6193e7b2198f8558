"""What a client is answered if the store did not do what a request needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from slipstream.router.http.http_error import HttpError
from slipstream.router.store.store_errors import StoreBusyError, StoreError, StoreFullError


@contextmanager
def store_failures() -> Iterator[None]:
    """Raises HttpError in place of StoreError."""
    try:
        yield
    except StoreError as error:
        raise store_failure(error) from error


def store_failure(error: StoreError) -> HttpError:
    """507 if there is no room, else 503."""
    if isinstance(error, StoreFullError):
        return HttpError(507, sentence(error), kind="server_error", code="store_full")
    headers = (("retry-after", "1"),) if isinstance(error, StoreBusyError) else ()
    return HttpError(503, sentence(error), kind="server_error", code="store_unavailable", headers=headers)


def sentence(error: StoreError) -> str:
    text = str(error).removesuffix(".")
    return f"{text[:1].upper()}{text[1:]}."
