"""The input of `slipstream batch`, checked, and divided into batches that a router takes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slipstream.cluster.terminal.command_error import CommandError
from slipstream.router.api.openai.batches.batch_input import LineError, parse_line

MAX_LINES = 50_000  # of a batch: `router.batches.max_lines`
MAX_BYTES = 8 << 20  # of an upload, half of what `router.http.max_body_mib` allows
MAX_SHOWN = 20


@dataclass(frozen=True, slots=True)
class InputLine:
    """A request: where its line is, and which it is."""

    number: int  # from 1
    offset: int
    num_bytes: int
    custom_id: str
    url: str


class BatchInputFile:
    """All requests of a file. They stay on disk."""

    def __init__(self, path: Path) -> None:
        """Raises CommandError, which names the lines that are wrong."""
        self.path = path
        self.lines: list[InputLine] = []
        digest, seen = hashlib.sha256(), dict[str, int]()
        wrong: list[str] = []
        try:
            with path.open("rb") as file:
                offset = 0
                for number, text in enumerate(file, 1):
                    digest.update(text)
                    begin, offset = offset, offset + len(text)
                    if not text.strip():
                        continue
                    try:
                        line = parse_line(number, text)
                        if line.custom_id in seen:
                            message = f"'custom_id' {line.custom_id!r} was used in line {seen[line.custom_id]}."
                            raise LineError("duplicate_custom_id", message)
                        if len(text) > MAX_BYTES:
                            raise LineError("line_too_large", f"It is longer than {MAX_BYTES} bytes.")
                    except LineError as error:
                        wrong.append(f"{path}:{number}: {error}")
                        continue
                    seen[line.custom_id] = number
                    self.lines.append(InputLine(number, begin, len(text), line.custom_id, line.url))
        except OSError as error:
            raise CommandError(f"{path} cannot be read: {error.strerror or error}") from error
        if wrong:
            rest = [f"and {len(wrong) - MAX_SHOWN} more"] if len(wrong) > MAX_SHOWN else []
            raise CommandError("\n  ".join(["nothing was sent, because of", *wrong[:MAX_SHOWN], *rest]))
        if not self.lines:
            raise CommandError(f"{path}: there is no request in it")
        self.digest = digest.hexdigest()

    def parts(self) -> list[list[int]]:
        """The positions in `lines` of the requests of each batch: of one URL, and no larger than a router takes."""
        parts: list[list[int]] = []
        current: dict[str, tuple[list[int], int]] = {}
        for position, line in enumerate(self.lines):
            part, num_bytes = current.get(line.url, ([], 0))
            if not part or len(part) == MAX_LINES or num_bytes + line.num_bytes + 1 > MAX_BYTES:
                part, num_bytes = [], 0
                parts.append(part)
            part.append(position)
            current[line.url] = part, num_bytes + line.num_bytes + 1
        return parts

    def texts(self, part: list[int]) -> Iterator[bytes]:
        """The lines of a part."""
        with self.path.open("rb") as file:
            for position in part:
                line = self.lines[position]
                file.seek(line.offset)
                yield file.read(line.num_bytes).rstrip(b"\r\n") + b"\n"
