"""A body of type multipart/form-data (RFC 7578, RFC 2046 5.1) that has come whole, without a copy of its parts."""

from __future__ import annotations

import re
from email.message import Message
from typing import NamedTuple

from slipstream.router.http.http_error import HttpError

MAX_PARTS = 64
MAX_HEADER_BYTES = 8192  # of a part
BOUNDARY = re.compile(rb"[0-9A-Za-z'()+_,\-./:=? ]{0,69}[0-9A-Za-z'()+_,\-./:=?]")  # RFC 2046, 5.1.1


class FormPart(NamedTuple):
    """A field of a form. `filename` None: it is no file."""

    name: str
    filename: str | None
    data: memoryview

    def text(self) -> str:
        """Raises HttpError 400."""
        try:
            return bytes(self.data).decode()
        except UnicodeDecodeError:
            raise bad_form(f"the field {self.name!r} is not UTF-8") from None


def parse_form(body: bytes, content_type: bytes) -> dict[str, FormPart]:
    """The fields by their names; of repeated ones the last. Raises HttpError 400, or 415 for another type."""
    delimiter = b"--" + _boundary_of(content_type)
    parts: dict[str, FormPart] = {}
    begin = 0 if body.startswith(delimiter) else _after(body, b"\r\n" + delimiter, 0) - len(delimiter)
    begin += len(delimiter)
    for _ in range(MAX_PARTS):
        rest = body[begin : begin + 2]
        if rest == b"--":
            return parts
        end_of_line = _after(body, b"\r\n", begin)  # white space may stand behind a delimiter
        if body[begin : end_of_line - 2].strip(b" \t"):
            raise bad_form("something stands behind a boundary")
        end_of_part = body.find(b"\r\n" + delimiter, end_of_line - 2)
        if end_of_part < 0:
            raise bad_form("it is cut off")
        part = _part(body, end_of_line, end_of_part)
        parts[part.name] = part
        begin = end_of_part + 2 + len(delimiter)
    raise bad_form(f"it has more than {MAX_PARTS} fields")


def bad_form(reason: str) -> HttpError:
    return HttpError(400, f"The body is no multipart/form-data: {reason}.", code="malformed_body")


def _boundary_of(content_type: bytes) -> bytes:
    header = Message()
    header["content-type"] = content_type.decode("latin-1")
    if header.get_content_type() != "multipart/form-data":
        raise HttpError(
            415,
            f"The body must be multipart/form-data, got {header.get_content_type()[:64]!r}.",
            param="Content-Type",
            code="unsupported_media_type",
        )
    boundary = str(header.get_param("boundary") or "").encode("latin-1", "replace")
    if not BOUNDARY.fullmatch(boundary):
        raise bad_form("its Content-Type has no usable boundary")
    return boundary


def _after(body: bytes, what: bytes, begin: int) -> int:
    found = body.find(what, begin)
    if found < 0:
        raise bad_form("it is cut off")
    return found + len(what)


def _part(body: bytes, begin: int, end: int) -> FormPart:
    """The part between two boundaries: header lines, an empty line, the data."""
    if body.startswith(b"\r\n", begin):
        raise bad_form("a part has no Content-Disposition")
    blank = body.find(b"\r\n\r\n", begin, min(end, begin + MAX_HEADER_BYTES))
    if blank < 0:
        raise bad_form(f"a part has no headers, or more than {MAX_HEADER_BYTES} bytes of them")
    for line in body[begin:blank].split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() != b"content-disposition":
            continue
        header = Message()
        header["content-disposition"] = value.strip().decode("utf-8", "replace")
        field, filename = header.get_param("name", header="content-disposition"), header.get_filename()
        if header.get_content_disposition() == "form-data" and isinstance(field, str):
            if filename is not None:  # a character set of its own may have halves of characters
                filename = filename.encode("utf-8", "replace").decode()
            return FormPart(field, filename, memoryview(body)[blank + 4 : end])
    raise bad_form("a part has no Content-Disposition with a name")
