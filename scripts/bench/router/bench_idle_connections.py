"""What idle client connections cost a router: memory each, and the time of a request beside them.

    python scripts/bench/router/bench_idle_connections.py [--connections 10000] [--tls]

A server of the router's HTTP front runs in a process of its own and is measured from outside (its resident memory).
Each connection sends one request before it goes idle, as a keep-alive client would.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import ssl
import subprocess
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import cast

import psutil
import uvloop

from slipstream.router.config.router_config import HttpConfig, TlsConfig
from slipstream.router.http.exchange import Exchange
from slipstream.router.http.reader import Request
from slipstream.router.http.server import HttpServer
from slipstream.router.process.open_files import allow_all_files

QUESTION = b"GET /health/live HTTP/1.1\r\nHost: bench\r\n\r\n"
BATCH = 200


async def live(request: Request, exchange: Exchange) -> None:
    exchange.respond(200, b'{"status":"live"}')


def serve(config: HttpConfig, ready: Connection) -> None:
    async def main() -> None:
        allow_all_files()
        server = HttpServer(config, live, lambda: None)
        ready.send(await server.start())
        await asyncio.Event().wait()

    uvloop.run(main())


class IdleClient(asyncio.Protocol):
    """Asks once, then holds its connection."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(QUESTION)

    def data_received(self, data: bytes) -> None:
        if not self.answered.done():
            self.answered.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.answered.done():
            self.answered.set_exception(error or ConnectionError("closed before it was answered"))


async def measure(port: int, process: psutil.Process, num_connections: int, tls: ssl.SSLContext | None) -> None:
    loop = asyncio.get_running_loop()

    async def connect() -> IdleClient:
        _, client = await loop.create_connection(IdleClient, "127.0.0.1", port, ssl=tls)
        await client.answered
        return client

    async def ask_ms(count: int = 200) -> float:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls)
        times = []
        for _ in range(count):
            began_s = time.perf_counter()
            writer.write(QUESTION)
            await reader.readuntil(b"live")
            times.append(time.perf_counter() - began_s)
            await reader.readuntil(b"}")
        writer.close()
        await writer.wait_closed()
        return median(times) * 1e3

    alone_ms = await ask_ms()
    before = process.memory_info().rss
    held: list[IdleClient] = []
    began_s = time.perf_counter()
    while len(held) < num_connections:
        held += await asyncio.gather(*(connect() for _ in range(min(BATCH, num_connections - len(held)))))
    took_s = time.perf_counter() - began_s
    each = (process.memory_info().rss - before) / num_connections
    beside_ms = await ask_ms()
    cpu_s = sum(process.cpu_times()[:2])
    await asyncio.sleep(5)  # the time in which idle CPU is measured
    idle_cpu = (sum(process.cpu_times()[:2]) - cpu_s) / 5
    print(
        f"{num_connections} connections{' over TLS' if tls else ''} in {took_s:.1f} s: {each / 1024:.1f} KiB each, "
        f"{process.memory_info().rss / 2**20:.0f} MiB in all; {idle_cpu:.2%} of a core while they are idle; "
        f"a request takes {beside_ms:.2f} ms beside them, {alone_ms:.2f} ms alone"
    )


def certificate(folder: Path) -> TlsConfig:
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-days", "2", "-subj", "/CN=bench", "-keyout", key, "-out", cert),
        ],
        check=True,
        capture_output=True,
    )
    return TlsConfig(cert, key)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=10_000)
    parser.add_argument("--tls", action="store_true")
    arguments = parser.parse_args()
    if allow_all_files() < arguments.connections + 100:
        parser.error(f"only {allow_all_files()} files may be open here (ulimit -Hn)")
    with tempfile.TemporaryDirectory() as folder:
        tls = certificate(Path(folder)) if arguments.tls else TlsConfig()
        config = HttpConfig(port=0, max_connections=arguments.connections + 10, keep_alive_s=600.0, tls=tls)
        ours, theirs = multiprocessing.Pipe()
        server = multiprocessing.get_context("spawn").Process(target=serve, args=(config, theirs), daemon=True)
        server.start()
        assert server.pid is not None
        context = ssl.create_default_context(cafile=tls.cert_file) if tls.is_on else None
        if context is not None:
            context.check_hostname = False
        try:
            uvloop.run(measure(ours.recv(), psutil.Process(server.pid), arguments.connections, context))
        finally:
            server.terminate()
            server.join()


if __name__ == "__main__":
    main()
