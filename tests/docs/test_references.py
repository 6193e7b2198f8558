"""Pages that are written from the code are those of the code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scripts.reference import api_paths, command_line, protocol_messages


@pytest.mark.parametrize("writer", [api_paths, command_line, protocol_messages], ids=lambda writer: writer.PAGE.stem)
def test_a_page_is_that_of_the_code(writer: Any) -> None:
    assert writer.PAGE.read_text(encoding="utf-8") == writer.page(), f"run {Path(writer.__file__).name}"
