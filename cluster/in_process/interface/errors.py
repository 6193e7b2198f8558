"""The errors that a program catches, one for each of Triton's codes. They are shown as `slipstream.NAME`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from slipstream.router.model_repository.repository_error import RepositoryError
from slipstream.router.tensors.infer_error import InferError, InferErrorCode

PUBLIC = "slipstream"  # the module that programs import them from


class TritonError(Exception):
    """Any error of the server. Its first argument is the text; that of a failed request has the response as second."""

    __module__ = PUBLIC

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class UnknownError(TritonError):
    __module__ = PUBLIC


class InternalError(TritonError):
    __module__ = PUBLIC


class NotFoundError(TritonError):
    __module__ = PUBLIC


class InvalidArgumentError(TritonError):
    __module__ = PUBLIC


class UnavailableError(TritonError):
    __module__ = PUBLIC


class UnsupportedError(TritonError):
    __module__ = PUBLIC


class AlreadyExistsError(TritonError):
    __module__ = PUBLIC


BY_CODE: dict[InferErrorCode, type[TritonError]] = {
    InferErrorCode.UNKNOWN: UnknownError,
    InferErrorCode.INTERNAL: InternalError,
    InferErrorCode.NOT_FOUND: NotFoundError,
    InferErrorCode.INVALID_ARG: InvalidArgumentError,
    InferErrorCode.UNAVAILABLE: UnavailableError,
    InferErrorCode.UNSUPPORTED: UnsupportedError,
    InferErrorCode.ALREADY_EXISTS: AlreadyExistsError,
    InferErrorCode.CANCELLED: UnknownError,  # Triton's API has no class of its own for it
}


def triton_error(error: InferError) -> TritonError:
    return BY_CODE[error.code](error.message)


@contextmanager
def errors_of_server() -> Iterator[None]:
    """Raises what the router raises as a TritonError; a TimeoutError of the caller's own stays one."""
    try:
        yield
    except InferError as error:
        raise triton_error(error) from None
    except RepositoryError as error:
        raise InternalError(error.cause) from None
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from error
    except TimeoutError:
        raise
    except OSError as error:
        raise InternalError(str(error)) from error
