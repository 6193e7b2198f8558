"""Several hosts on one machine, to try things on: network namespaces with a Ray node each, Slipstream over them.

    sudo .venv/bin/python scripts/faults/several_hosts.py            # a head, one host for prefill, two for decoding
    sudo .venv/bin/python scripts/faults/several_hosts.py --measure  # how long it takes to recover from what can happen

While it runs it takes orders at its prompt: `cut HOST HOST`, `heal HOST HOST`, `kill HOST`, `add prefill|decode`,
`status`, `ask`, `quit`. Everything is gone when it ends. Needs root and iproute2.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import click

from tests.hosts.conftest import SETTINGS
from tests.support.e2e.observation import Scrape, status_of, unrest
from tests.support.hosts.host_network import Network, NoNamespaces
from tests.support.hosts.hosts_load import Load, ask, client_of
from tests.support.hosts.ray_hosts import HostsCluster, RayHosts

ORDERS = "cut HOST HOST, heal HOST HOST, kill HOST, add prefill|decode, status, ask, quit"


class Playground:
    """A cluster and its hosts."""

    def __init__(self, hosts: RayHosts, serving: HostsCluster) -> None:
        self.hosts = hosts
        self.network = hosts.network
        self.serving = serving

    def obey(self, order: list[str]) -> None:
        """Raises KeyError for a host that there is not, ValueError for an order that is none."""
        match order:
            case ["cut", one, other]:
                self.network.cut(self.network.hosts[one], self.network.hosts[other])
            case ["heal", one, other]:
                self.network.heal(self.network.hosts[one], self.network.hosts[other])
            case ["kill", name]:
                self.network.unplug(self.network.hosts[name])
                self.network.hosts[name].kill()
            case ["add", "prefill" | "decode" as pool]:
                name = f"{pool}-host-{len(self.network.hosts)}"
                self.hosts.add(name, labels={"pool": pool}, resources={f"{pool}_host": 1})
                print(f"{name} is starting")
            case ["status"]:
                print(f"{self.serving.base_url}; hosts: {', '.join(self.network.hosts)}")
                for worker in status_of(self.serving)["workers"]:
                    print(f"  {worker['peer']['name']}: {worker['num_requests']} requests")
                for what in unrest(self.serving):
                    print(f"  {what}")
            case ["ask"]:
                began_s = time.monotonic()
                with client_of(self.serving) as client:
                    print(repr(ask(client, 0, str(began_s))), f"{time.monotonic() - began_s:.2f} s")
            case _:
                raise ValueError(" ".join(order))

    def num_workers(self) -> int:
        return len(status_of(self.serving)["workers"])


def _after(condition: Callable[[], bool]) -> float:
    """Seconds until it comes true."""
    began_s = time.monotonic()
    while not condition():
        if time.monotonic() - began_s > 120:
            raise TimeoutError
        time.sleep(0.02)
    return time.monotonic() - began_s


def measure(playground: Playground) -> None:
    """What happens, how long until requests are served without it, how long until all is as before, and the longest
    that a request took meanwhile."""
    network, serving = playground.network, playground.serving
    head, prefill = playground.hosts.head, network.hosts["prefill-host"]
    decodes = [network.hosts["decode-host-1"], network.hosts["decode-host-2"]]

    def total(name: str, **labels: str) -> float:
        return Scrape.of(serving).value(name, **labels)

    def report(what: str, load: Load, first: int, away_s: float, back_s: float) -> None:
        answers = load.answers[first:]
        failed = sum(not isinstance(said, str) for _, said, _ in answers)
        longest_s = max(seconds for _, _, seconds in answers)
        print(
            f"{what:44} noticed {away_s:5.1f} s  back {back_s:5.1f} s  longest request {longest_s:5.1f} s  "
            f"{failed} of {len(answers)} failed"
        )

    with Load(serving) as load:
        load.wait_for_answers(20)
        print(f"{'undisturbed':44} longest request {max(s for _, _, s in load.answers):5.1f} s")
        first, vain = len(load.answers), total("slipstream:retries_total", cause="unreachable")
        for decode in decodes:
            network.cut(prefill, decode)
        away_s = _after(lambda: total("slipstream:retries_total", cause="unreachable") > vain)
        time.sleep(10)  # how long the cable stays cut
        for decode in decodes:
            network.heal(prefill, decode)
        moved = total("slipstream:transfers_total")
        back_s = _after(lambda: total("slipstream:transfers_total") > moved)
        load.wait_for_answers(8)
        report("prefill and decode hosts cut for 10 s", load, first, away_s, back_s)

        first = len(load.answers)
        network.cut(head, decodes[0])
        away_s = _after(lambda: playground.num_workers() == 2)
        network.heal(head, decodes[0])
        back_s = _after(lambda: playground.num_workers() == 3)
        load.wait_for_answers(8)
        report("a decode host cut from the router", load, first, away_s, back_s)

        first = len(load.answers)
        playground.obey(["kill", "decode-host-2"])
        away_s = _after(lambda: playground.num_workers() == 2)
        playground.obey(["add", "decode"])
        back_s = _after(lambda: playground.num_workers() == 3)
        load.wait_for_answers(8)
        report("a decode host dies, another one is started", load, first, away_s, back_s)
    print(f"all given back after {_after(lambda: not unrest(serving)):.1f} s")


@click.command()
@click.option("--measure", "is_measured", is_flag=True, help="Measure recovery times, and end.")
def main(is_measured: bool) -> None:
    """Serve the demo model over several hosts of this machine."""
    with ExitStack() as stack:
        try:
            network = stack.enter_context(Network())
        except NoNamespaces as why:
            raise click.ClickException(f"no hosts can be made here: {why}") from None
        hosts = stack.enter_context(RayHosts(network))
        hosts.add("prefill-host", labels={"pool": "prefill"})
        for name in ("decode-host-1", "decode-host-2"):
            hosts.add(name, labels={"pool": "decode"}, resources={"decode_host": 1})
        hosts.wait_for_hosts(4)
        serving = stack.enter_context(HostsCluster(hosts, SETTINGS))
        playground = Playground(hosts, serving)
        if is_measured:
            measure(playground)
            return
        print(f"Serving at {serving.base_url}, Ray's dashboard at {hosts.dashboard}. Orders: {ORDERS}")
        for line in sys.stdin:
            order = line.split()
            if order == ["quit"]:
                break
            try:
                playground.obey(order)
            except KeyError as name:
                print(f"there is no host {name}; there are {', '.join(network.hosts)}")
            except ValueError:
                print(f"orders: {ORDERS}")


if __name__ == "__main__":
    main()
