"""The ids of calls."""

from __future__ import annotations

import re

from slipstream.router.parsers.call_id import call_id_of
from slipstream.router.parsers.events import CallBegin


def test_a_call_has_the_id_that_the_model_wrote_or_else_one_of_its_own_that_is_always_the_same() -> None:
    assert call_id_of(CallBegin(0, "f", "written"), "a", ()) == "written"
    own = call_id_of(CallBegin(0, "f"), "a", ())
    assert re.fullmatch("call_[0-9a-f]{24}", own)
    assert own == call_id_of(CallBegin(0, "f", "written"), "a", {"written"})
    others = {call_id_of(CallBegin(1, "f"), "a", ()), call_id_of(CallBegin(0, "f"), "b", ())}
    assert len({own, *others}) == 3
    assert call_id_of(CallBegin(0, "f"), "a", (), "toolu").startswith("toolu_")
