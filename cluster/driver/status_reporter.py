"""Shows what the supervisor reports, at the terminal and in the state file."""

from __future__ import annotations

from collections.abc import Mapping

from slipstream.cluster.driver.urls import url_of
from slipstream.cluster.ray.local_ray import LocalRay
from slipstream.cluster.repository.files_watch import FilesWatch
from slipstream.cluster.state.cluster_state import MemberStatus
from slipstream.cluster.state.cluster_status import consequence
from slipstream.cluster.state.state_file import StateFile
from slipstream.cluster.supervisor.cluster_fleet import ClusterFleet
from slipstream.cluster.terminal.console import Console
from slipstream.router.model_files.manifest import REFUSES
from slipstream.router.process.addresses import Addresses
from slipstream.router.process.listening import here
from slipstream.router.registry.expected_workers import ExpectedWorkers


class StatusReporter:
    """The supervisor's observer (`managed.Observer`)."""

    def __init__(self, console: Console, state_file: StateFile, local_ray: LocalRay | None, uses_tls: bool) -> None:
        self._console = console
        self._state = state_file.state
        self._state_file = state_file
        self._local_ray = local_ray
        self._uses_tls = uses_tls
        self.http: tuple[str, int, bool] | None = None  # the router's host and port for this machine; TLS?
        self.settled = False
        self.fleet: ClusterFleet | None = None
        self.files: dict[str, FilesWatch] = {}

    def changed(self, member: MemberStatus, members: list[MemberStatus]) -> None:
        self._state.members = members
        self._state_file.write_soon()
        if member.state == "dead" and REFUSES in member.detail:
            self._count_refusal(member)
        text = f"{member.name} {member.state}" + (f": {member.detail}" if member.detail else "")
        if self.settled:
            if member.state in ("dead", "ready", "silent", "pending", "draining", "failed", "stopped"):
                self._console.event(text)
        elif member.state == "ready" and member.role != "router":
            self._console.step(f"{member.name} ready")
        elif member.state != "failed":
            self._console.pending("; ".join(f"{m.name} {m.state}" for m in self._state.members if m.state != "ready"))

    def _count_refusal(self, member: MemberStatus) -> None:
        """A router reads the files of all models."""
        for model, files in self.files.items():
            if member.role == "router" or member.model == model:
                files.num_refused[member.version or self._state.of_model(model).version] += 1

    def files_changed(self, name: str, changed: Mapping[str, str]) -> None:
        """The files of a model were replaced while it is served, or put back."""
        model = self._state.of_model(name)
        which = f"{name}: " if self._state.further else ""
        for version in model.files.keys() | changed.keys():
            if version in changed:
                self._console.event(f"{which}{consequence(version, changed[version])}")
            else:
                self._console.event(f"{which}the files of version {version} are there again")
        model.files = dict(changed)
        self._state_file.write()

    def wants(self, expected: Mapping[str, ExpectedWorkers]) -> None:
        for model in self._state.models:
            workers = expected.get(model.model)
            is_held = self.fleet is not None and model.model in self.fleet.held  # an update has more groups for a while
            if workers is not None and not is_held and not model.is_leaving:
                model.wanted = {"prefill": workers.num_prefill, "decode": workers.num_decode}
        self._state_file.write()  # at once: the next driver goes by it

    def launched(self, member: MemberStatus) -> None:
        if self._local_ray is not None:
            self._local_ray.watch_processes()
        if not self.settled:
            self._console.step(f"{member.name} has its processes")

    def listening(self, at: Addresses) -> None:
        self.http = (here(at.http.host), at.http.port, self._uses_tls)
        self._state.url = url_of("https" if self._uses_tls else "http", at.http)
        self._state.admin_url = url_of("http", at.admin) if at.admin is not None else ""
        if at.repository is not None:
            grpc, metrics = at.repository.grpc, at.repository.metrics
            self._state.grpc_url = url_of("grpc", grpc) if grpc is not None else ""
            self._state.tensor_metrics_url = url_of("http", metrics) if metrics is not None else ""
        if not self.settled:
            self._console.step(f"router listens at {self._state.url}")
