"""What transformers logs is in the format of the process, and not in one of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
import transformers

from slipstream.workers.models.directory.json_keys import ModelError
from slipstream.workers.models.general.pretrained import read_config


def test_lines_of_transformers_go_to_the_handlers_of_the_process(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ModelError):
        read_config(Path("/nowhere"))
    transformers.utils.logging.get_logger("transformers.models.x").warning("of transformers")
    assert ("transformers.models.x", "of transformers") in [(one.name, one.getMessage()) for one in caplog.records]
    assert capsys.readouterr().err == ""
