"""Why a model of a repository cannot be loaded, in the two forms that Triton's clients see."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.router.tensors.infer_error import InferError, InferErrorCode

AMBIGUOUS = "model appears in two or more repositories"  # the reason of UNAVAILABLE in the index


class RepositoryError(Exception):
    """A model cannot be read: its configuration is refused at reading, or it is in no or in two repositories. `cause`
    goes to the log; clients see less."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause

    def as_infer_error(self, model: str) -> InferError:
        """What a call that asked for the load answers."""
        return InferError(f"failed to load '{model}', failed to poll from model repository", InferErrorCode.INTERNAL)


class LoadError(Exception):
    """A version was read, but is refused after completion, or cannot be initialised. `cause` is the reason in the
    index: `Invalid argument: model input 'A' must specify 'dims' for M`."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class VersionsError(Exception):
    """Versions of a model have failed at the end of their loads; `causes` are theirs."""

    def __init__(self, causes: Mapping[str, str]) -> None:
        super().__init__(dict(causes))
        self.causes = causes


def load_failure(model: str, causes: Mapping[str, str]) -> InferError:
    """What a call that asked for a load answers if versions did not become ready (version -> cause), or if none could
    be tried ("" -> cause)."""
    parts = "".join(
        f"version {version} is at UNAVAILABLE state: {cause};" if version else cause
        for version, cause in sorted(causes.items())
    )
    return InferError(f"load failed for model '{model}': {parts}\n", InferErrorCode.INVALID_ARG)
