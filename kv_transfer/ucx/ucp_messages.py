"""Calls into UCX for messages, where ucxx has no calls or more expensive ones.

A message is a buffer, or a stream (`page_stream`) that UCX packs straight into its own buffers and unpacks straight out
of them. Contexts, workers and endpoints are ucxx's. Constants and structures are those of UCX's public interface
(ucp.h, version 1, which is guaranteed to be stable).
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_int32, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from typing import Any

from ucxx._lib.arr import Array

from slipstream.kv_transfer.api.transport import Buffer, TransportError
from slipstream.kv_transfer.memory.page_stream import PageStream, StreamLibrary

Content = Buffer | PageStream

MAJOR_VERSION = 1
_FIELD_DATATYPE = 1 << 3
_BYTES = 1 << 3  # ucp_dt_make_contig(1)
_IN_PROGRESS = 1
_LAST_ERROR = -100


class _RequestParameters(Structure):
    """ucp_request_param_t."""

    _fields_ = (
        ("op_attr_mask", c_uint32),
        ("flags", c_uint32),
        ("request", c_void_p),
        ("callback", c_void_p),
        ("datatype", c_uint64),
        ("user_data", c_void_p),
        ("reply_buffer", c_void_p),
        ("memory_type", c_int),
        ("recv_info", c_void_p),
        ("memh", c_void_p),
    )


class _Information(Structure):
    """ucp_tag_recv_info_t."""

    _fields_ = (("sender_tag", c_uint64), ("length", c_size_t))


@dataclass(frozen=True, slots=True, eq=False)
class Probed:
    """A message that has arrived, at least in part, and must be received."""

    handle: int
    tag: int
    num_bytes: int


class UcxRequest:
    """An operation under way. UCX uses its content until `is_done` is True."""

    def __init__(self, ucp: Ucp, content: Content, pointer: int | None) -> None:
        self._ucp = ucp
        self._content = content
        self._pointer: int | None = None
        self._status = 0
        if pointer is not None:  # otherwise it is done already
            if pointer >= (1 << 64) + _LAST_ERROR:  # an error code instead of an address
                self._status = pointer - (1 << 64)
            else:
                self._pointer = pointer

    def is_done(self) -> bool:
        if self._pointer is not None and (status := self._ucp.check(self._pointer)) != _IN_PROGRESS:
            self._ucp.free(self._pointer)
            self._pointer, self._status = None, status
        return self._pointer is None

    @property
    def error(self) -> str | None:
        return None if self._status == 0 else self._ucp.text(self._status).decode()

    def cancel(self, worker: Any) -> None:
        """Ask UCX to end the operation soon; it may ignore that."""
        if self._pointer is not None:
            self._ucp.cancel(worker.handle, self._pointer)


class Ucp:
    """UCX's own library, which ucxx has loaded. Raises TransportError if it is not the version described here."""

    def __init__(self) -> None:
        try:
            ucp, ucs = (ctypes.CDLL(name, mode=os.RTLD_NOLOAD) for name in ("libucp.so.0", "libucs.so.0"))
            self._send = _typed(ucp.ucp_tag_send_nbx, c_void_p, c_void_p, c_void_p, c_size_t, c_uint64, c_void_p)
            self._receive = _typed(ucp.ucp_tag_msg_recv_nbx, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p, c_void_p)
            self._probe = _typed(ucp.ucp_tag_probe_nb, c_void_p, c_void_p, c_uint64, c_uint64, c_int, c_void_p)
            self._create = _typed(ucp.ucp_dt_create_generic, c_int32, c_void_p, c_void_p, POINTER(c_uint64))
            self.check = _typed(ucp.ucp_request_check_status, c_int32, c_void_p)
            self.free = _typed(ucp.ucp_request_free, None, c_void_p)
            self.cancel = _typed(ucp.ucp_request_cancel, None, c_void_p, c_void_p)
            self.text = _typed(ucs.ucs_status_string, c_char_p, c_int32)
            version = _typed(ucp.ucp_get_version, None, *[POINTER(c_uint)] * 3)
        except (OSError, AttributeError) as error:
            raise TransportError(f"UCX's own library is not to be found: {error}") from error
        major, minor, release = c_uint(), c_uint(), c_uint()
        version(byref(major), byref(minor), byref(release))
        if major.value != MAJOR_VERSION:
            raise TransportError(f"UCX {major.value}.{minor.value} has another interface than version {MAJOR_VERSION}")
        self._of_bytes = _RequestParameters(op_attr_mask=_FIELD_DATATYPE, datatype=_BYTES)
        self._of_stream: _RequestParameters | None = None
        self._found = _Information()

    def use_streams(self, library: StreamLibrary) -> None:
        """Allow messages to be streams of this library. Raises TransportError if UCX does not accept that."""
        datatype = c_uint64()  # never freed: a few dozen bytes for the life of the process
        if self._create(library.operations, None, byref(datatype)):
            raise TransportError("UCX takes no datatype of ours")
        self._of_stream = _RequestParameters(op_attr_mask=_FIELD_DATATYPE, datatype=datatype.value)

    def send(self, endpoint: Any, tag: int, content: Content) -> UcxRequest:
        address, count, parameters = self._as_arguments(content)
        return UcxRequest(self, content, self._send(endpoint.handle, address, count, tag, parameters))

    def probe(self, worker: Any) -> Probed | None:
        """The next message of any tag."""
        found = self._found
        handle = self._probe(worker.handle, 0, 0, 1, byref(found))
        return None if handle is None else Probed(handle, found.sender_tag, found.length)

    def receive(self, worker: Any, probed: Probed, content: Content) -> UcxRequest:
        """`content` must have room for the message."""
        address, count, parameters = self._as_arguments(content)
        return UcxRequest(self, content, self._receive(worker.handle, address, count, probed.handle, parameters))

    def _as_arguments(self, content: Content) -> tuple[int | None, int, Any]:
        if isinstance(content, PageStream):
            assert self._of_stream is not None
            return content.handle, 1, byref(self._of_stream)
        return Array(content).ptr, len(content), byref(self._of_bytes)


def _typed(function: Any, result: Any, *arguments: Any) -> Any:
    function.restype = result
    function.argtypes = arguments
    return function
