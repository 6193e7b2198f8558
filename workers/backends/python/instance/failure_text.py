"""The text of an exception of a model, in the form that Triton's clients know."""

from __future__ import annotations

import os
from types import FrameType, TracebackType

OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class InstanceError(Exception):
    """A failure that this program has found, not the model's code. Its text stands alone."""


def failure_text(exception: BaseException) -> str:
    """`ValueError: text`, and where it was raised: the innermost function first, without functions of this program."""
    if isinstance(exception, InstanceError):
        return str(exception)
    lines = [f"  {file}({line}): {function}" for file, line, function in frames_of(exception.__traceback__)]
    text = f"{type(exception).__name__}: {str(exception) or '<EMPTY MESSAGE>'}"
    return text + "\n\nAt:\n" + "\n".join(lines) + "\n" if lines else text


def frames_of(traceback: TracebackType | None) -> list[tuple[str, int, str]]:
    if traceback is None:
        return []
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    frame: FrameType | None = traceback.tb_frame
    found = []
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith(OURS):
            found.append((code.co_filename, frame.f_lineno or 0, code.co_name))
        frame = frame.f_back
    return found
