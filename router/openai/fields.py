"""What the checked bodies are made of: types of fields, and the base of all objects."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

INT32_MAX = 2**31 - 1
MAX_STOP_CHARS = 512

FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]
TokenId = Annotated[int, Field(ge=0, le=INT32_MAX)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
Label = Annotated[str, Field(max_length=512)]


def exactly(*served: Any, advice: str = "") -> AfterValidator:
    """A field of which only some values are served. `advice` is told to those who ask for another."""

    told = f"; {advice}" if advice else ""

    def check(value: Any) -> Any:
        # `==` alone would take 0 and 0.0 for False.
        if any(value == one and type(value) is type(one) for one in served):
            return value
        raise PydanticCustomError("unsupported", "is not supported by this server yet{advice}", {"advice": told})

    return AfterValidator(check)


def only(*neutral: Any, advice: str = "") -> AfterValidator:
    """A field that is not supported yet: it may be absent, null, or one of the values that ask for nothing."""
    return exactly(None, *neutral, advice=advice)


def as_list(value: Any) -> Any:
    """A single stop string becomes a list of one."""
    return [value] if isinstance(value, str) else value


def at_most(max_length: int) -> BeforeValidator:
    """A bound for the size of objects that is checked first: pydantic's own checks every entry before counting them."""

    def check(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > max_length:
            raise PydanticCustomError("too_long", "has more than {max_length} entries", {"max_length": max_length})
        return value

    return BeforeValidator(check)


Unserved = Annotated[Any, only()]


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, hide_input_in_errors=True)


def field_error(field: str, message: str) -> PydanticCustomError:
    """A complaint about `field` from a validator of the whole object."""
    return PydanticCustomError("field", "{message}", {"field": field, "message": message})


# The names of union members in the paths of errors. The tilde tells them from fields that a client made up.
UNION_TAGS = frozenset({"~string", "~object", "~parts", "~strings", "~ids", "~id_lists"})
