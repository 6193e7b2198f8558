"""A model that waits 5 ms for each request, with one instance on one host and on each of two: requests a second.

    .venv/bin/python -m scripts.bench.kserve.bench_hosts

The hosts are network namespaces with shared memory of their own, so that tensors travel by TCP. The router's side runs
in this process. Needs root and iproute2.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path

from tests.support.hosts.host_network import Network
from tests.support.hosts.tensor_hosts import NO_TLS, requests_per_second, tensor_hosts
from tests.support.router.authority import Authority


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--values", type=int, default=16, help="numbers of 4 bytes in the input")
    parser.add_argument("--tls", action="store_true", help="the link is encrypted, and both ends show a certificate")
    options = parser.parse_args()
    rates = []
    with Network() as network:
        for num_hosts in (1, 2):
            with tempfile.TemporaryDirectory() as folder:
                issued = Authority(Path(folder) / "ca").issue("host", f"IP:{network.desk_address}")
                tls = issued if options.tls else NO_TLS
                async with tensor_hosts(network, Path(folder), num_hosts, tls) as lab:
                    rates.append(await requests_per_second(lab, options.seconds, options.values))
            print(f"{num_hosts} host{'s' if num_hosts > 1 else ''}: {rates[-1]:.0f} requests/s")
    print(f"ratio: {rates[1] / rates[0]:.2f}")


if __name__ == "__main__":
    asyncio.run(main())
