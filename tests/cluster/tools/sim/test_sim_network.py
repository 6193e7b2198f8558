from __future__ import annotations

import pytest

from slipstream.cluster.tools.sim.hardware.network import Network, Nic
from slipstream.cluster.tools.sim.hardware.virtual_clock import VirtualClock


class Line:
    """A network of 100 bytes a second, without latency unless said, and what has landed on it."""

    def __init__(self, latency_s: float = 0.0) -> None:
        self.clock = VirtualClock()
        self.network = Network(self.clock, 100.0, latency_s, peer_timeout_s=10.0)
        self.landed: dict[str, tuple[float, float]] = {}
        self.lost: dict[str, float] = {}

    def send(self, name: str, src: Nic, dst: Nic, num_bytes: float) -> None:
        self.network.finish(self.network.open(src, dst, num_bytes, self.done, self.gone, name), 0.0)

    def done(self, name: str, seconds: float) -> None:
        self.landed[name] = self.clock.now_s, seconds

    def gone(self, name: str) -> None:
        self.lost[name] = self.clock.now_s

    def run(self) -> None:
        while len(self.clock):
            self.clock.step()


def test_a_transfer_alone_has_the_whole_card() -> None:
    line = Line(latency_s=0.5)
    line.send("a", Nic(), Nic(), 200.0)
    line.run()
    assert line.landed == {"a": (2.5, 2.5)}


def test_transfers_of_one_card_share_it_and_the_rest_goes_on_alone() -> None:
    line = Line()
    src = Nic()
    line.send("short", src, Nic(), 100.0)
    line.send("long", src, Nic(), 300.0)
    line.run()
    assert line.landed["short"][0] == pytest.approx(2.0)
    assert line.landed["long"][0] == pytest.approx(4.0)


def test_the_busier_end_decides() -> None:
    line = Line()
    dst = Nic()
    for name in "abc":
        line.send(name, Nic(), dst, 100.0)
    line.run()
    assert [at for at, _ in line.landed.values()] == pytest.approx([3.0] * 3)
    assert line.network.most_in_flight == 3
    assert line.network.moved_bytes == 300.0


def test_the_tail_waits_for_the_prompt_and_the_head_does_not() -> None:
    line = Line()
    transfer = line.network.open(Nic(), Nic(), 100.0, line.done, line.gone, "a")
    line.clock.at(5.0, lambda _: line.network.finish(transfer, 50.0))
    line.run()
    assert line.landed["a"] == (pytest.approx(5.5), pytest.approx(5.5))


def test_a_cut_stops_what_is_on_its_way_and_it_goes_on_where_it_was() -> None:
    line = Line()
    src, dst = Nic(), Nic()
    line.send("cut", src, dst, 200.0)
    line.send("other", Nic(), Nic(), 200.0)
    line.clock.at(1.0, lambda _: line.network.cut(dst, True))
    line.clock.at(4.0, lambda _: line.network.cut(dst, False))
    line.run()
    assert line.landed["other"][0] == pytest.approx(2.0)
    assert line.landed["cut"][0] == pytest.approx(5.0)


def test_what_is_aborted_when_all_of_it_is_through_does_not_land_either() -> None:
    line, src, dst = Line(latency_s=0.5), Nic(), Nic()
    transfer = line.network.open(src, dst, 100.0, line.done, line.gone, "a")
    line.network.finish(transfer, 0.0)
    line.clock.at(1.2, line.network.abort, transfer)  # its last byte has left at 1.0 s
    line.run()
    assert not line.landed
    assert line.network.num_in_flight == 0


def test_what_is_aborted_never_lands_and_leaves_its_share_to_others() -> None:
    line = Line()
    src = Nic()
    gone = line.network.open(src, Nic(), 1000.0, line.done, line.gone, "gone")
    line.send("stays", src, Nic(), 100.0)
    line.clock.at(1.0, lambda _: line.network.abort(gone))
    line.run()
    assert set(line.landed) == {"stays"}
    assert line.landed["stays"][0] == pytest.approx(1.5)
    assert line.network.num_in_flight == 0
