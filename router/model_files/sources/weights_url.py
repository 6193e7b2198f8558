"""The address of a model that is not (only) in a local directory."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

SCHEMES = ("hf", "s3", "gs", "az", "https", "file")
URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
HUB_REPOSITORY = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40}")


class WeightsUrlError(ValueError):
    """The text is no address of a model; one sentence that says why."""


@dataclass(frozen=True, slots=True)
class WeightsUrl:
    """`location` is what follows `://`: a repository of the hub, a bucket and a folder in it, a host and a folder, or
    the absolute path of a directory. `revision` is a branch, tag or commit of the hub's repository ("": `main`)."""

    scheme: str
    location: str
    revision: str = ""

    @classmethod
    def parse(cls, text: str) -> WeightsUrl | None:
        """None if the text is the path of a local directory. Raises WeightsUrlError."""
        found = URL.fullmatch(text)
        if found is None:
            return None
        scheme, location = found[1].lower(), found[2]
        _check_has_no_password(scheme, location)
        text = re.split("[?#]", text, maxsplit=1)[0]  # what follows may be a signature, and errors show the text
        if scheme == "http":
            raise WeightsUrlError(f"http:// would let others exchange the weights on their way; use https://: {text}")
        if scheme not in SCHEMES:
            known = ", ".join(f"{one}://" for one in SCHEMES)
            raise WeightsUrlError(f"must be a directory or begin with one of {known}, got {text}")
        if not location.isprintable():
            raise WeightsUrlError(f"must be printable, got {text!r}")
        return _of_hub(text, location) if scheme == "hf" else _of_folder(text, scheme, location)

    @property
    def name(self) -> str:
        """What the model is called unless the configuration names it."""
        return self.location if self.scheme == "hf" else self.location.rpartition("/")[2]

    @property
    def slug(self) -> str:
        """A folder's name for all versions of the model."""
        return f"{self.scheme}--{re.sub(r'[^A-Za-z0-9._-]+', '--', self.location.strip('/'))}"[:200]

    @property
    def is_pinned(self) -> bool:
        """Whether it always has the same files."""
        return self.scheme == "hf" and COMMIT.fullmatch(self.revision) is not None

    @property
    def shown(self) -> str:
        """Short enough for one line of a terminal."""
        return str(self.at(self.revision[:8]) if self.is_pinned else self)

    def at(self, revision: str) -> WeightsUrl:
        return replace(self, revision=revision)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.location}" + (f"@{self.revision}" if self.revision else "")


def _check_has_no_password(scheme: str, location: str) -> None:
    """A model of the hub may be `NAME@REVISION`, but has no port and no password. Raises WeightsUrlError."""
    user, separator, host = location.partition("/")[0].rpartition("@")
    if separator and scheme != "file" and (scheme != "hf" or ":" in user):
        where = f"; ~/.netrc is read for {host}" if scheme == "https" else ""
        raise WeightsUrlError(f"must not contain a user or a password, which logs would show{where}")


def _of_hub(text: str, location: str) -> WeightsUrl:
    repository, separator, revision = location.rstrip("/").partition("@")
    if not HUB_REPOSITORY.fullmatch(repository) or (separator and not revision):
        raise WeightsUrlError(f"must be hf://ORGANIZATION/NAME or hf://ORGANIZATION/NAME@REVISION, got {text}")
    return WeightsUrl("hf", repository, revision)


def _of_folder(text: str, scheme: str, location: str) -> WeightsUrl:
    folder = location.rstrip("/")
    if not folder.strip("/") or (scheme != "file" and folder.startswith("/")):
        example = (
            "file:///models/NAME" if scheme == "file" else f"{scheme}://{'HOST' if scheme == 'https' else 'BUCKET'}"
        )
        raise WeightsUrlError(f"must name a folder, as in {example}{'' if scheme == 'file' else '/FOLDER'}, got {text}")
    if scheme == "file" and not folder.startswith("/"):
        raise WeightsUrlError(f"must name an absolute path, as in file:///models/NAME, got {text}")
    if scheme == "https" and ("?" in folder or "#" in folder):
        raise WeightsUrlError(f"must be the folder of a model, without ? and #, got {text}")
    return WeightsUrl(scheme, folder)
