"""How clusters end: those of all tests, after everything that other tests have done to them (see `conftest`)."""

from __future__ import annotations

import os
import signal

from tests.e2e.serving_cluster import END_TIMEOUT_S, ServingCluster
from tests.e2e.streams import BackgroundStream, prompt_of, streaming


def test_a_second_ctrl_c_does_not_wait_for_running_streams(cluster: ServingCluster) -> None:
    stream = BackgroundStream(cluster, prompt_of(100), 3500)
    with streaming([stream]):
        stream.wait_for_pieces(5)
        cluster.interrupt()
        cluster.wait_for(lambda: "draining: running requests may finish" in cluster.output, 30)
        cluster.interrupt()
        assert cluster.wait() == 0
    assert stream.error is not None
    assert "stopping at once" in cluster.output
    assert cluster.left_behind(0.0) == []


def test_a_driver_killed_together_with_its_reaper_takes_ray_and_workers_along(fleet_of_all: ServingCluster) -> None:
    processes = fleet_of_all.processes()
    (reaper,) = (process for process in processes if "slipstream.cluster.reaper" in process.cmdline())
    reaper.kill()
    os.kill(fleet_of_all.pid, signal.SIGKILL)
    fleet_of_all.wait()
    # Ray's agents, which only the reaper ends at once, notice by themselves after about a minute.
    assert fleet_of_all.left_behind(END_TIMEOUT_S, but="Agent") == []


def test_a_cluster_whose_ray_dies_ends_at_once_and_leaves_nothing(tp2_cluster: ServingCluster) -> None:
    # The raylet ends in order when an agent of it dies, and all actors with it; `ray start` goes on.
    (agent,) = (process for process in tp2_cluster.processes() if "DashboardAgent" in " ".join(process.cmdline()))
    agent.kill()
    assert tp2_cluster.wait() == 1
    assert "Ray has ended under the cluster" in tp2_cluster.output
    assert tp2_cluster.left_behind(END_TIMEOUT_S) == []
    assert tp2_cluster.state is None
