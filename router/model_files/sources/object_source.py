"""A folder of an object store, read with fsspec and its driver for it (s3fs, gcsfs, adlfs). They find credentials and
endpoints as always: in the environment, in the files of each cloud's tools, and in fsspec's configuration."""

from __future__ import annotations

import base64
import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec

from slipstream.router.model_files.sources.checksum import Checksum, ChecksumKind
from slipstream.router.model_files.sources.weights_source import (
    Listing,
    SourceError,
    SourceFile,
    SourceRefused,
    SourceUnreachable,
)
from slipstream.router.model_files.sources.weights_url import WeightsUrl

DRIVERS = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs"}
OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {"config_kwargs": {"connect_timeout": 10, "read_timeout": 30, "retries": {"max_attempts": 3}}}
}
PIECE_BYTES = 16 << 20  # of a request
MD5 = re.compile(r"[0-9a-f]{32}")
PARTS_MD5 = re.compile(r"[0-9a-f]{32}-[0-9]+")


class ObjectSource:
    def __init__(self, url: WeightsUrl) -> None:
        """Raises ImportError without the driver."""
        importlib.import_module(DRIVERS[url.scheme])
        self.url = url
        self._opened: tuple[Any, str] | None = None
        self._found: dict[str, dict[str, Any]] = {}

    def listing(self) -> Listing:
        with self._in_sentences():
            system, folder = self._open()
            found = system.find(folder, detail=True)
        self._found = {path.removeprefix(folder).lstrip("/"): info for path, info in found.items()}
        if not self._found:
            raise SourceRefused(f"{self.url}: there are no files")
        return Listing(
            tuple(SourceFile(name, int(info["size"]), _stamp(info)) for name, info in self._found.items() if name)
        )

    @contextmanager
    def stream(self, file: SourceFile, begin: int, end: int) -> Iterator[Iterator[bytes]]:
        yield self._pieces(file.name, begin, end)

    def checksum(self, file: SourceFile) -> Checksum | None:
        info = self._found.get(file.name, {})
        if self.url.scheme == "s3":
            return self._checksum_of_s3(file.name, _stamp(info))
        digest = info.get("md5Hash") or (info.get("content_settings") or {}).get("content_md5")
        if not digest:
            return None
        content = base64.b64decode(digest) if isinstance(digest, str) else bytes(digest)
        return Checksum("md5", content.hex())

    def local_copy(self, file: SourceFile) -> Path | None:
        return None

    def _pieces(self, name: str, begin: int, end: int) -> Iterator[bytes]:
        while begin < end:
            with self._in_sentences(name):
                system, folder = self._open()
                piece = system.cat_file(f"{folder}/{name}", start=begin, end=min(begin + PIECE_BYTES, end))
            if not piece:
                return
            begin += len(piece)
            yield piece

    def _checksum_of_s3(self, name: str, etag: str) -> Checksum | None:
        """The ETag is made from the content, unless the object is encrypted with a key of its owner's."""
        kind: ChecksumKind | None = (
            "md5" if MD5.fullmatch(etag) else "s3_multipart" if PARTS_MD5.fullmatch(etag) else None
        )
        with self._in_sentences(name):
            system, folder = self._open()
            bucket, _, prefix = folder.partition("/")
            head = system.call_s3("head_object", Bucket=bucket, Key=f"{prefix}/{name}".lstrip("/"))
        is_own_key = "SSECustomerAlgorithm" in head or str(head.get("ServerSideEncryption", "")).startswith("aws:kms")
        return None if kind is None or is_own_key else Checksum(kind, etag)

    def _open(self) -> tuple[Any, str]:
        if self._opened is None:
            options = OPTIONS.get(self.url.scheme, {})
            system, path = fsspec.core.url_to_fs(str(self.url), skip_instance_cache=True, **options)
            self._opened = system, path.rstrip("/")
        return self._opened

    @contextmanager
    def _in_sentences(self, name: str = "") -> Iterator[None]:
        try:
            yield
        except SourceError:
            raise
        except FileNotFoundError:
            raise SourceRefused(f"{self.url}: {name or 'the folder'} does not exist") from None
        except PermissionError as error:
            raise SourceRefused(f"{self.url}: access is refused: {_first_line(error)}") from None
        except Exception as error:  # each driver has errors of its own, of which most say that nothing answers
            text = f"{self.url}: {type(error).__name__}: {_first_line(error)}"
            refused = "Credential" in type(error).__name__ or isinstance(error, ValueError)
            raise (SourceRefused(text) if refused else SourceUnreachable(text)) from None


def _stamp(info: dict[str, Any]) -> str:
    return str(info.get("ETag") or info.get("etag") or info.get("LastModified") or info.get("updated") or "").strip('"')


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
