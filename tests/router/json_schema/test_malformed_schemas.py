"""Schemas that are not schemas: a refusal by a pointer into them, whatever they are."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream.router.grammar import COMPACT_JSON, GrammarError
from slipstream.router.json_guide import json_guide
from slipstream.router.json_schema.document import Document
from slipstream.router.json_schema.keywords import ASKING

KEYS = st.sampled_from(sorted(ASKING | {"a", "$defs", "$id", "$anchor", "title"}))
SCALARS = st.sampled_from(
    [None, True, False, 0, 1, -1, 2.5, 10**25, 1e308, "", "a", "object", "#", "#/$defs/a", "^(a", "integer"]
)
ANYTHING = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(ANYTHING)
def test_anything_gets_a_verdict(value: Any) -> None:
    fault = fault_of(value)
    if fault is not None and fault.startswith("at "):
        assert Document(value).has(fault.removeprefix("at ").partition(": ")[0]), fault


def fault_of(value: Any) -> str | None:
    try:
        json_guide(json.dumps(value), COMPACT_JSON)
    except GrammarError as error:
        return str(error)
    return None
