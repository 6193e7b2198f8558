"""Fields of this server: how a request is to be served, whatever its API."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from slipstream.router.api.openai.schema.fields import INT32_MAX, FiniteFloat, Label, Strict
from slipstream.router.protocol.generation import Slo

MAX_MILLISECONDS = 86_400_000
MAX_TIMEOUT_S = 86_400
NO_SLO = Slo()


class SloFields(Strict):
    """The service level that the client asks for, in milliseconds. With `strict`, it wants to be refused at once if the
    first token cannot come in time."""

    ttft_ms: Annotated[FiniteFloat, Field(gt=0, le=MAX_MILLISECONDS)] | None = None
    itl_ms: Annotated[FiniteFloat, Field(gt=0, le=MAX_MILLISECONDS)] | None = None
    strict: bool | None = None


class ServingFields(Strict):
    """Those that every API has. `seed` is the client's, where it wants the same output again."""

    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    priority: Annotated[int, Field(ge=-INT32_MAX, le=INT32_MAX)] | None = None
    cache_salt: Label | None = None
    session_id: Label | None = None
    slo: SloFields | None = None
    expected_output_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    timeout_s: Annotated[FiniteFloat, Field(gt=0, le=MAX_TIMEOUT_S)] | None = None

    @property
    def service_level(self) -> Slo:
        """The one that was asked for, in seconds."""
        if self.slo is None:
            return NO_SLO
        ttft_ms, itl_ms = self.slo.ttft_ms, self.slo.itl_ms
        return Slo(ttft_ms and ttft_ms / 1e3, itl_ms and itl_ms / 1e3, bool(self.slo.strict))
