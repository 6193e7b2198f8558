"""A server with the endpoints of the Hugging Face Hub that reading a model takes, as `huggingface_hub` calls them, and
a folder of files over HTTPS. Both can cut connections, change bytes, refuse tokens and count what was asked."""

from __future__ import annotations

import hashlib
import json
import re
import ssl
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PIECE_BYTES = 64 << 10
INFO = re.compile(r"/api/models/([^/]+/[^/?]+)(?:/revision/([^/?]+))?(?:\?.*)?")
TREE = re.compile(r"/api/models/([^/]+/[^/?]+)/tree/([^/?]+)(?:\?.*)?")
RESOLVE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass(slots=True)
class Faults:
    """`cuts` are the numbers of bytes after which the next answers with a body of a file break off; with `hangs_after`
    every one stops there until `go_on` is set. `altered` files have another first byte, the next so many times."""

    cuts: list[int] = field(default_factory=list)
    hangs_after: int | None = None
    go_on: threading.Event = field(default_factory=threading.Event)
    altered: Counter[str] = field(default_factory=Counter)
    status: int | None = None  # of all answers
    ignores_ranges: bool = False


@dataclass(slots=True)
class FileServer:
    """What a running server has. `requests` are method and path; `num_bytes` counts bytes of bodies by file. A hub
    redirects requests for large files to `files_at`, another name of its own; `seen_tokens` are those that came with
    them."""

    url: str
    faults: Faults
    requests: list[tuple[str, str]] = field(default_factory=list)
    num_bytes: Counter[str] = field(default_factory=Counter)
    seen_tokens: list[str | None] = field(default_factory=list)

    @property
    def files_at(self) -> str:
        return self.url.replace("localhost", "127.0.0.1")


@dataclass(slots=True)
class HubRepository:
    """`revisions`: the commit of each branch. `commits`: the files of each."""

    revisions: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    token: str | None = None  # that its readers must have
    is_gated: bool = False

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        commit = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.revisions[branch] = commit
        self.commits[commit] = files
        return commit


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class FileHandler(BaseHTTPRequestHandler):
    """Sends files whole or in part. Subclasses find them."""

    protocol_version = "HTTP/1.1"
    server_state: FileServer

    def log_message(self, format: str, *args: object) -> None:
        """Tests show nothing."""

    def answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_file(self, name: str, content: bytes, headers: dict[str, str]) -> None:
        faults, begin, end = self.server_state.faults, 0, len(content)
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        is_same = self.headers.get("If-Range") in (None, headers.get("ETag"))
        is_part = asked is not None and is_same and not faults.ignores_ranges
        if asked is not None and is_part:
            begin, end = int(asked[1]), int(asked[2]) + 1
        self.send_response(HTTPStatus.PARTIAL_CONTENT if is_part else HTTPStatus.OK)
        for key, value in {**headers, "Accept-Ranges": "bytes", "Content-Length": str(end - begin)}.items():
            self.send_header(key, value)
        if is_part:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(content)}")
        self.end_headers()
        if self.command == "HEAD":
            return
        if faults.altered[name] and begin == 0:
            faults.altered[name] -= 1
            content = bytes([content[0] ^ 1]) + content[1:]
        cut = faults.cuts.pop(0) if faults.cuts and end - begin > PIECE_BYTES else None
        stop = end if cut is None else min(end, begin + cut)
        for first in range(begin, stop, PIECE_BYTES):
            if faults.hangs_after is not None and first - begin >= faults.hangs_after:
                faults.go_on.wait(30)
            piece = content[first : min(first + PIECE_BYTES, stop)]
            self.wfile.write(piece)
            self.server_state.num_bytes[name] += len(piece)
        if stop < end:
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(2)


class HubHandler(FileHandler):
    repositories: dict[str, HubRepository]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server_state.requests.append((self.command, self.path))
        if self.server_state.faults.status is not None:
            self.answer(self.server_state.faults.status)
        elif tree := TREE.fullmatch(self.path):
            self._tree(tree[1], tree[2])
        elif info := INFO.fullmatch(self.path):
            self._info(info[1], info[2] or "main")
        elif self.path.startswith("/cdn/"):
            self._cdn(self.path.removeprefix("/cdn/"))
        elif file := RESOLVE.fullmatch(self.path):
            self._resolve(file[1], file[2], file[3])
        else:
            self.answer(404)

    def _repository(self, name: str) -> HubRepository | None:
        """The repository, if the caller may read it; else the hub's answer has been sent."""
        found = self.repositories.get(name)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if found is None or (found.token is not None and token != found.token):
            code = {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"} if token else {}
            self.answer(404 if token and found is None else 401, b"{}", code)
            return None
        if found.is_gated:
            self.answer(403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": f"Access to {name} is restricted"})
            return None
        return found

    def _commit(self, found: HubRepository, revision: str) -> str | None:
        commit = found.revisions.get(revision, revision)
        if commit in found.commits:
            return commit
        self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"})
        return None

    def _info(self, name: str, revision: str) -> None:
        found = self._repository(name)
        commit = self._commit(found, revision) if found is not None else None
        if found is None or commit is None:
            return
        siblings = []
        for file, content in found.commits[commit].items():
            sibling: dict[str, object] = {"rfilename": file, "size": len(content), "blobId": git_sha1(content)}
            if is_lfs(file):
                sibling["lfs"] = {"size": len(content), "sha256": sha256(content), "pointerSize": 135}
            siblings.append(sibling)
        body = {"id": name, "modelId": name, "sha": commit, "private": False, "siblings": siblings, "tags": []}
        self.answer(200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _tree(self, name: str, revision: str) -> None:
        found = self._repository(name)
        commit = self._commit(found, revision) if found is not None else None
        if found is None or commit is None:
            return
        entries = []
        for file, content in found.commits[commit].items():
            entry: dict[str, object] = {"type": "file", "path": file, "size": len(content), "oid": git_sha1(content)}
            if is_lfs(file):
                entry["lfs"] = {"oid": sha256(content), "size": len(content), "pointerSize": 135}
            entries.append(entry)
        self.answer(200, json.dumps(entries).encode(), {"Content-Type": "application/json"})

    def _resolve(self, name: str, revision: str, file: str) -> None:
        found = self._repository(name)
        commit = self._commit(found, revision) if found is not None else None
        if found is None or commit is None:
            return
        content = found.commits[commit].get(file)
        if content is None:
            self.answer(404, b"", {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"})
        elif is_lfs(file):
            headers = {
                "X-Repo-Commit": commit,
                "X-Linked-Etag": f'"{sha256(content)}"',
                "X-Linked-Size": str(len(content)),
                "Location": f"{self.server_state.files_at}/cdn/{commit}/{file}",
            }
            self.answer(302, b"", headers)
        else:
            self.send_file(file, content, {"X-Repo-Commit": commit, "ETag": f'"{git_sha1(content)}"'})

    def _cdn(self, path: str) -> None:
        commit, _, file = path.partition("/")
        self.server_state.seen_tokens.append(self.headers.get("Authorization"))
        content = next(one.commits[commit][file] for one in self.repositories.values() if commit in one.commits)
        self.send_file(file, content, {"ETag": f'"{sha256(content)}"'})


class FolderHandler(FileHandler):
    files: dict[str, bytes]
    redirects_to: str = ""  # where files are instead
    login: str | None = None  # what the Authorization header must be

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.server_state.requests.append((self.command, self.path))
        content = self.files.get(self.path.lstrip("/"))
        if self.server_state.faults.status is not None:
            self.answer(self.server_state.faults.status)
        elif self.login is not None and self.headers.get("Authorization") != self.login:
            self.answer(401)
        elif self.redirects_to:
            self.answer(302, b"", {"Location": f"{self.redirects_to}{self.path}"})
        elif content is None:
            self.answer(404)
        else:
            name = self.path.rpartition("/")[2]
            self.send_file(name, content, {"ETag": f'"{sha256(content)[:16]}"'})


@contextmanager
def hub(repositories: dict[str, HubRepository]) -> Iterator[FileServer]:
    """A hub at `http://127.0.0.1:PORT`, which `HF_ENDPOINT` is to name."""
    with serving(HubHandler, repositories=repositories) as server:
        yield server


@contextmanager
def https_folder(
    files: dict[str, bytes], cert: Path, key: Path, login: str | None = None, redirects_to: str = ""
) -> Iterator[FileServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    with serving(FolderHandler, context, files=files, login=login, redirects_to=redirects_to) as server:
        yield server


@contextmanager
def serving(handler: type[FileHandler], tls: ssl.SSLContext | None = None, **state: object) -> Iterator[FileServer]:
    running = FileServer("", Faults())
    bound = type("Bound", (handler,), {**state, "server_state": running})

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that goes away in the middle is part of the tests."""

    server = Server(("127.0.0.1", 0), bound)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    running.url = f"{'http' if tls is None else 'https'}://localhost:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield running
    finally:
        running.faults.go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()


def own_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for localhost that is its own authority, and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"]
    subprocess.run([*command, *names, "-out", cert, "-keyout", key], check=True, capture_output=True)
    return cert, key


def is_lfs(name: str) -> bool:
    return name.endswith((".safetensors", ".bin", "tokenizer.json"))


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def git_sha1(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
