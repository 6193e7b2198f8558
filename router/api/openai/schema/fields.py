"""What the checked bodies are made of: types of fields, and the base of all objects."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from slipstream.router.api.openai.schema.shown import shown

INT32_MAX = 2**31 - 1
MAX_STOP_CHARS = 512

FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]
TokenId = Annotated[int, Field(ge=0, le=INT32_MAX)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
Label = Annotated[str, Field(max_length=512)]


def exactly(*served: Any, advice: str = "", kind: str = "") -> AfterValidator:
    """A field of which only some values are served. A refusal names the value, calls it a `kind`, says what is accepted
    and ends with `advice`."""

    def check(value: Any) -> Any:
        if is_one_of(value, served):
            return value
        raise unsupported(value, served, advice=advice, kind=kind)

    return AfterValidator(check)


def only(*neutral: Any, advice: str = "") -> AfterValidator:
    """A field that is not supported yet: it may be absent, null, or one of the values that change nothing."""
    return exactly(*neutral, None, advice=advice)


def unsupported(
    value: Any, accepted: Iterable[Any], *, field: str = "", advice: str = "", kind: str = ""
) -> PydanticCustomError:
    """The refusal of a value that is right in itself, but not served. `field` is given by validators of a whole
    object."""
    message = refusal(value, accepted, kind)
    return PydanticCustomError(
        "unsupported", "{message}", {"field": field, "message": f"{message}; {advice}" if advice else message}
    )


def is_one_of(value: Any, others: Iterable[Any]) -> bool:
    """Whether `value` is one of the others in JSON's sense: `==` alone would take 0 and 0.0 for False."""
    return any(value == one and type(value) is type(one) for one in others)


def refusal(value: Any, accepted: Iterable[Any], kind: str = "") -> str:
    """Says that a value, one of a `kind`, is not served, and what is."""
    said = f"{kind} {shown(value)} are" if kind else f"{shown(value)} is"
    return f"{said} not supported; accepted: {', '.join(map(shown, accepted))}"


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


# The names of union members in the paths of errors. The tilde distinguishes them from unknown fields of a client.
UNION_TAGS = frozenset(
    {"~string", "~object", "~parts", "~strings", "~ids", "~id_lists", "~function", "~allowed"}
    | {"~items", "~message", "~reasoning", "~function_call", "~custom_call", "~call_output", "~item_reference"}
    | {"~unserved", "~custom", "~namespace", "~hosted"}
    | {"~text", "~thinking", "~redacted_thinking", "~tool_use", "~tool_result"}
)
