"""moto's S3 server, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

START = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print("http://%s:%d" % server.get_host_and_port(), flush=True)
sys.stdin.read()
"""
ACCOUNT = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@contextmanager
def s3_server() -> Iterator[str]:
    """Its URL, which `AWS_ENDPOINT_URL` is to name."""
    command = [sys.executable, "-W", "ignore", "-c", START]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().decode().strip()
        finally:
            process.stdin.close()
            process.wait(10)


def s3_client(url: str) -> Any:
    import boto3

    os.environ.update(ACCOUNT)
    return boto3.client("s3", endpoint_url=url)


def upload(client: Any, folder: Path, bucket: str, prefix: str) -> None:
    """As `aws s3 cp --recursive` does: large files in parts of 8 MiB."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            client.upload_file(str(path), bucket, f"{prefix}/{path.relative_to(folder)}")
