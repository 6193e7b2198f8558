"""The base of what callers of the admin API send."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class StrictBody(BaseModel):
    """Unknown fields are refused, and no value is converted to another type."""

    model_config = ConfigDict(extra="forbid", strict=True)
