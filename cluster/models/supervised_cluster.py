"""The parts of a cluster that its driver has made, and passes on together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from slipstream.cluster.repository.files_watch import FilesWatch
from slipstream.cluster.repository.model_content import ModelContent
from slipstream.cluster.supervisor.cluster_fleet import ClusterFleet
from slipstream.cluster.supervisor.members.deployment import Deployment
from slipstream.cluster.supervisor.supervisor import Supervisor
from slipstream.router.registry.expected_workers import ExpectedWorkers


class ModelReporter(Protocol):
    """Shows what happens to the models, and notes it in the state. Once it is `settled`, the cluster serves. `http` are
    the router's host and port for this machine, and whether it uses TLS."""

    http: tuple[str, int, bool] | None
    settled: bool

    def wants(self, expected: Mapping[str, ExpectedWorkers]) -> None:
        """How many groups of each model are to be there has been decided anew."""

    def files_changed(self, name: str, changed: Mapping[str, str]) -> None:
        """The files of a model were replaced while it is served, or put back."""


@dataclass(frozen=True, slots=True)
class SupervisedCluster:
    """By model: `contents` are those of the files at the start, `files` compare what they are made from with what is
    there. `first` is a deployment of which those of further models are made."""

    supervisor: Supervisor
    fleet: ClusterFleet
    reporter: ModelReporter
    files: dict[str, FilesWatch]
    contents: dict[str, ModelContent]
    first: Deployment
