"""The parts of a cluster that its driver has made, and passes on together."""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.cluster.driver.status_reporter import StatusReporter
from slipstream.cluster.repository.files_watch import FilesWatch
from slipstream.cluster.repository.model_content import ModelContent
from slipstream.cluster.supervisor.cluster_fleet import ClusterFleet
from slipstream.cluster.supervisor.supervisor import Supervisor


@dataclass(frozen=True, slots=True)
class SupervisedCluster:
    """`content` is that of the model's files at the start, `files` compares it with what is there."""

    supervisor: Supervisor
    fleet: ClusterFleet
    reporter: StatusReporter
    files: FilesWatch
    content: ModelContent
