"""A model of the Hugging Face Hub, or of a mirror of it: `huggingface_hub` finds endpoint, token and proxies, as
everywhere, and what its errors mean. The bytes are read here, because its downloads begin anew after a process ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import HfApi, hf_hub_url, try_to_load_from_cache
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers, get_session, get_token, hf_raise_for_status

from slipstream.router.model_files.sources.checksum import Checksum, ChecksumKind
from slipstream.router.model_files.sources.directory_source import pieces_of
from slipstream.router.model_files.sources.http_range import range_header, skipped
from slipstream.router.model_files.sources.weights_source import (
    Listing,
    SourceError,
    SourceFile,
    SourceRefused,
    SourceUnreachable,
)
from slipstream.router.model_files.sources.weights_url import COMMIT, WeightsUrl

TIMEOUT_S = 30.0


class HubSource:
    def __init__(self, url: WeightsUrl) -> None:
        self.url = url
        self._endpoint = os.environ.get("HF_ENDPOINT") or None
        self._commit = ""
        self._is_offline = False
        self._checksums: dict[str, Checksum] = {}

    def listing(self) -> Listing:
        """That of the hub or, with HF_HUB_OFFLINE, what the user's cache has of it."""
        with self._in_sentences():
            try:
                return self._listing_of_hub()
            except OfflineModeIsEnabled:
                cached = self._listing_of_cache()
                if cached is None:
                    raise
                return cached

    def _listing_of_hub(self) -> Listing:
        api = HfApi(endpoint=self._endpoint, library_name="slipstream")
        info = api.model_info(
            self.url.location, revision=self.url.revision or None, files_metadata=True, timeout=TIMEOUT_S
        )
        files = []
        for one in info.siblings or []:
            if one.size is None:  # a directory of a mirror
                continue
            if one.lfs is not None:
                self._checksums[one.rfilename] = Checksum("sha256", one.lfs.sha256)
            elif one.blob_id is not None:
                self._checksums[one.rfilename] = Checksum("git_sha1", one.blob_id)
            files.append(SourceFile(one.rfilename, one.size, one.blob_id or ""))
        self._commit = info.sha or ""
        if not COMMIT.fullmatch(self._commit):  # it becomes the name of a folder
            raise SourceRefused(f"{self.url}: the hub does not say which commit this is, got {self._commit[:64]!r}")
        return Listing(tuple(files), self._commit)

    def _listing_of_cache(self) -> Listing | None:
        """The snapshot that `huggingface_hub` has of the revision, if there are weights in it. Its links lead to files
        that are called by their hashes."""
        config = try_to_load_from_cache(self.url.location, "config.json", revision=self.url.revision or None)
        if not isinstance(config, str):
            return None
        snapshot = Path(config).parent
        files = [path for path in sorted(snapshot.rglob("*")) if path.is_file()]
        if not any(path.suffix == ".safetensors" for path in files):
            return None
        self._commit, self._is_offline = snapshot.name, True
        for path in files:
            digest = path.resolve().name
            kind: ChecksumKind | None = "sha256" if len(digest) == 64 else "git_sha1" if len(digest) == 40 else None
            if kind is not None:
                self._checksums[str(path.relative_to(snapshot))] = Checksum(kind, digest)
        listed = (SourceFile(str(path.relative_to(snapshot)), path.stat().st_size) for path in files)
        return Listing(tuple(listed), self._commit)

    @contextmanager
    def stream(self, file: SourceFile, begin: int, end: int) -> Iterator[Iterator[bytes]]:
        copy = self.local_copy(file) if self._is_offline else None
        if copy is not None and copy.stat().st_size == file.num_bytes:
            with copy.open("rb") as opened:
                opened.seek(begin)
                yield pieces_of(opened.read, end - begin)
            return
        revision = self._commit or self.url.revision or None
        address = hf_hub_url(self.url.location, file.name, revision=revision, endpoint=self._endpoint)
        headers = build_hf_headers(library_name="slipstream") | {"Accept-Encoding": "identity"}
        headers |= range_header(begin, end, file.num_bytes)
        with (
            self._in_sentences(file.name),
            get_session().stream("GET", address, headers=headers, timeout=TIMEOUT_S) as response,
        ):
            hf_raise_for_status(response)
            pieces = response.iter_bytes()  # in pieces of what has arrived: a cut loses none
            yield skipped(pieces, 0 if response.status_code == 206 else begin, end - begin)

    def checksum(self, file: SourceFile) -> Checksum | None:
        return self._checksums.get(file.name)

    def local_copy(self, file: SourceFile) -> Path | None:
        """In the cache of `huggingface_hub`."""
        found = try_to_load_from_cache(self.url.location, file.name, revision=self._commit or None)
        return Path(found) if isinstance(found, str) else None

    @contextmanager
    def _in_sentences(self, name: str = "") -> Iterator[None]:
        try:
            yield
        except SourceError:
            raise
        except GatedRepoError:
            raise SourceRefused(
                f"{self.url}: the model is gated: its page on the hub says how to get access, and HF_TOKEN or `hf auth "
                f"login` whose access it is"
            ) from None
        except RevisionNotFoundError:
            raise SourceRefused(f"{self.url}: the model has no revision {self.url.revision or 'main'!r}") from None
        except RepositoryNotFoundError as error:
            raise SourceRefused(f"{self.url}: {_why_not_found(error)}") from None
        except HfHubHTTPError as error:
            raise _of_status(f"{self.url}: ", name, error) from None
        except OfflineModeIsEnabled:
            raise SourceUnreachable(
                f"{self.url}: HF_HUB_OFFLINE is set, and the cache of huggingface_hub does not have the model"
            ) from None
        except HTTPError as error:
            reason = str(error) or type(error).__name__
            raise SourceUnreachable(f"{self.url}: the hub does not answer: {reason}") from None
        except ValueError as error:  # a name that the hub cannot have
            raise SourceRefused(f"{self.url}: {str(error).splitlines()[0]}") from None


def _why_not_found(error: HfHubHTTPError) -> str:
    """The hub answers 401 for what does not exist, so that it does not reveal which private models do."""
    if error.response.status_code != 401:
        return "there is no such model"
    if get_token():
        return "the hub refuses the token, or there is no such model for its owner"
    return "there is no such model, or it needs a token (HF_TOKEN or `hf auth login`)"


def _of_status(begin: str, name: str, error: HfHubHTTPError) -> SourceError:
    status = error.response.status_code
    if status == 401:
        return SourceRefused(f"{begin}{_why_not_found(error)}")
    if status == 403:
        return SourceRefused(f"{begin}the hub refuses the token" + (f" for {name}" if name else ""))
    if status == 404:
        return SourceRefused(f"{begin}{name or 'it'} does not exist")
    reason = f"{begin}the hub answers {status}" + (f" for {name}" if name else "")
    return SourceUnreachable(reason) if status in (408, 429) or status >= 500 else SourceRefused(reason)
