"""How clusters end: those of all tests, after everything that other tests have done to them (see `conftest`)."""

from __future__ import annotations

import os
import signal
import socket
from urllib.parse import urlsplit

from tests.support.e2e.freezing import frozen
from tests.support.e2e.serving_cluster import END_TIMEOUT_S, ServingCluster, command_of
from tests.support.e2e.streams import BackgroundStream, prompt_of, streaming


def test_a_cluster_that_leaves_its_balancers_serves_on_until_ctrl_c_which_does_not_wait_for_streams(
    cluster: ServingCluster,
) -> None:
    stream = BackgroundStream(cluster, prompt_of(100), 3500)
    with streaming([stream]):
        stream.wait_for_pieces(5)
        with frozen(*cluster.pids("decode-0")):  # the stream does not end by itself
            cluster.terminate()
            cluster.wait_for(lambda: "draining: new requests are served for 600 s more" in cluster.output, 30)
            cluster.wait_for(lambda: cluster.get("/health/ready")[0] == 503, 30)
            assert cluster.get("/v1/models")[0] == 200
            cluster.interrupt()
            assert cluster.wait() == 0
    assert stream.error is not None
    assert "stopping at once" in cluster.output
    assert cluster.left_behind(0.0) == []


def test_a_driver_killed_together_with_its_guardian_and_reaper_takes_ray_and_workers_along(
    fleet_of_all: ServingCluster,
) -> None:
    processes, state = fleet_of_all.processes(), fleet_of_all.state
    assert state is not None
    (reaper,) = (process for process in processes if "slipstream.cluster.processes.reaper" in command_of(process))
    reaper.kill()
    for pid in (fleet_of_all.pid, state.driver):
        os.kill(pid, signal.SIGKILL)
    fleet_of_all.wait()
    # Ray's agents, which only guardian and reaper end at once, notice by themselves after about a minute.
    assert fleet_of_all.left_behind(END_TIMEOUT_S, but="Agent") == []


def test_a_cluster_whose_ray_dies_starts_again_and_its_streams_go_on(tp2_cluster: ServingCluster) -> None:
    before = tp2_cluster.state
    assert before is not None
    quiet = BackgroundStream(tp2_cluster, prompt_of(100), 1000)
    with streaming([quiet]):
        expected = quiet.join()
    stream = BackgroundStream(tp2_cluster, prompt_of(100), 1000)
    with streaming([stream]):
        stream.wait_for_pieces(5)
        # The raylet ends in order when an agent of it dies, and all actors with it; `ray start` goes on.
        (agent,) = (process for process in tp2_cluster.processes() if "DashboardAgent" in command_of(process))
        with frozen(*tp2_cluster.pids("decode-0")):  # the stream does not end before
            agent.kill()
            tp2_cluster.wait_for(lambda: "Ray has ended under the cluster" in tp2_cluster.output, 60)
        assert stream.join() == expected
    assert stream.error is None
    tp2_cluster.wait_until_served_by_another(before.driver)


def test_a_router_that_is_killed_while_the_cluster_drains_is_followed_by_one_that_lets_streams_finish(
    tp2_cluster: ServingCluster,
) -> None:
    quiet = BackgroundStream(tp2_cluster, prompt_of(100), 1500)
    with streaming([quiet]):
        expected = quiet.join()
    stream = BackgroundStream(tp2_cluster, prompt_of(100), 1500)
    with streaming([stream]):
        stream.wait_for_pieces(5)
        address = urlsplit(tp2_cluster.base_url)
        with frozen(*tp2_cluster.pids("decode-0")):  # the stream does not end before
            tp2_cluster.interrupt()
            tp2_cluster.wait_for(lambda: is_refused(address.hostname or "", address.port or 0), 30)
            os.kill(tp2_cluster.pids("router")[0], signal.SIGKILL)
        assert stream.join() == expected
    assert stream.error is None
    assert tp2_cluster.wait() == 0
    assert tp2_cluster.left_behind(0.0) == []
    assert tp2_cluster.state is None


def is_refused(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port)).close()
    except ConnectionError:
        return True
    return False
