"""The state of a running cluster, as its driver writes it down and others read it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from slipstream.cluster.fleet.fleet_port import MemberState
from slipstream.cluster.fleet.update_plan import Phase
from slipstream.cluster.processes import process_tree
from slipstream.cluster.state.model_state import ModelPhase, ModelState, StateOfModel, carry_on, phase_of
from slipstream.router.protocol.messages import Role
from slipstream.router.tls.client_tls import ClientTlsConfig

ClusterPhase = Literal["starting", "ready", "draining", "stopping", "down"]  # down: between two drivers


@dataclass(slots=True)
class MemberStatus:
    """The state of one member. `state` is one of its own states (for workers see `worker_report`), `detail` one line
    for people, `since` in seconds since the epoch. `startup_s` are the stages of a worker's last start, with their
    seconds."""

    name: str
    role: str
    state: MemberState = "new"
    detail: str = ""
    pids: list[int] = field(default_factory=list)
    restarts: int = 0
    since: float = 0.0
    startup_s: list[tuple[str, float]] = field(default_factory=list)
    host: str = ""
    version: str = ""
    model: str = ""


@dataclass(slots=True)
class ClusterState:
    """The state of a cluster. `pid` and `started` (`process_tree.start_time`) identify the process that gets signals
    for it (`guardian`), `driver` and `driver_started` its driver. `wanted` is how many groups of each role are to be
    there; empty: as the configuration says. `served` is the content of the file `config` as it was when it was read
    (`served_config`), with what has been changed of its models since. With several models, the fields of `StateOfModel`
    are those of the first, and `further` has the others. `version` is what is served of it is called, `content` the
    digest of that (`ModelContent`). `slipstream` and `guardian_slipstream` are the versions of this program that the
    two processes run."""

    name: str
    pid: int
    started: float
    config: str
    model: str
    phase: ClusterPhase = "starting"
    url: str = ""
    log_dir: str = ""
    members: list[MemberStatus] = field(default_factory=list)
    admin_url: str = ""
    grpc_url: str = ""  # of the repository, as that of its metrics
    tensor_metrics_url: str = ""
    operator_url: str = ""
    operator_token: str = ""
    operator_tls: ClientTlsConfig = field(default_factory=ClientTlsConfig)  # where that URL is https
    driver: int = 0
    driver_started: float = 0.0
    wanted: dict[Role, int] = field(default_factory=dict)
    update: str = ""  # the latest line about the latest update
    update_phase: Phase | None = None  # what it was in then; None: there was no update
    served: dict[str, Any] = field(default_factory=dict)
    version: str = ""
    content: str = ""
    slipstream: str = ""  # the driver's version
    guardian_slipstream: str = ""
    names: list[str] = field(default_factory=list)  # of all versions since the cluster was first started
    files: dict[str, str] = field(default_factory=dict)  # by version: which of its files is another one now
    tried: dict[str, str] = field(default_factory=dict)  # watched folders that were updated to, with their stamps
    is_leaving: bool = False  # the first model is being removed
    asked: str = ""  # what a repository's model asked for, where the first model is served for that
    promotions: dict[str, str] = field(default_factory=dict)  # models of the repository: the latest line about theirs
    further: list[ModelState] = field(default_factory=list)  # of the models but the first

    def public(self) -> dict[str, Any]:
        """The state as plain values, without secrets, and without what only the next driver has a use for."""
        hidden = ("operator_token", "operator_tls", "served", "tried", "further", "asked", "promotions")
        shown = {key: value for key, value in asdict(self).items() if key not in hidden}
        return shown | {"models": [self._shown(model) for model in self.models]}

    def _shown(self, model: StateOfModel) -> dict[str, Any]:
        phase, reason = self.phase_of(model)
        shown = {key: getattr(model, key) for key in ("config", "wanted", "version", "update", "update_phase", "files")}
        return {
            "name": model.model,
            "state": phase,
            "reason": reason,
            "is_for_repository": bool(model.asked),
            **shown,
        }

    @property
    def models(self) -> list[StateOfModel]:
        """All models but those of the repository. The first one's state is that of the cluster, as where there is no
        other."""
        return [self, *self.further] if self.model else [*self.further]

    def of_model(self, name: str) -> StateOfModel:
        """Raises KeyError if there is none of this name."""
        for model in self.models:
            if model.model == name:
                return model
        raise KeyError(name)

    def forget_model(self, name: str) -> None:
        """Removes a model. If it was the first, the next one is in its place, if there is one."""
        if name == self.model:
            first = self.further.pop(0) if self.further else ModelState("")
            for one in fields(ModelState):
                setattr(self, one.name, getattr(first, one.name))
        self.further = [model for model in self.further if model.model != name]

    def members_of(self, model: StateOfModel) -> list[MemberStatus]:
        """Its worker groups. In a file that a driver of a single model has written, they name no model."""
        workers = [one for one in self.members if one.role in ("prefill", "decode")]
        return [one for one in workers if one.model in ("", model.model)]

    def phase_of(self, model: StateOfModel) -> tuple[ModelPhase, str]:
        """The model's state, and the reason if there is one to give."""
        return phase_of(self.members_of(model), model.is_leaving)

    def carry_on(self, before: ClusterState) -> None:
        """Takes over what the previous driver has found out or decided, until this one knows better: if this one dies
        before that, the next one still has it."""
        self.url, self.admin_url = before.url, before.admin_url
        self.grpc_url, self.tensor_metrics_url = before.grpc_url, before.tensor_metrics_url
        self.promotions = dict(before.promotions)
        if not self.further and not before.further:
            carry_on(self, before)
            return
        for model in self.models:
            with suppress(KeyError):
                carry_on(model, before.of_model(model.model))

    @property
    def ask_url(self) -> str:
        """The URL for operators' requests to the router: that of the admin port if there is one, else that of the
        API."""
        return self.admin_url or self.url

    @property
    def is_stale(self) -> bool:
        return not process_tree.is_running(self.pid, self.started)

    @property
    def last_words(self) -> str:
        """One sentence about a cluster that is stale."""
        if self.has_driver:
            return (
                f"its guardian (pid {self.pid}) was killed, and its driver (pid {self.driver}) lets running requests "
                "finish"
            )
        return f"its guardian (pid {self.pid}) was killed, or the machine went down"

    @property
    def has_driver(self) -> bool:
        """Otherwise it was killed, and the next one has not come so far."""
        return process_tree.is_running(self.driver, self.driver_started)

    @property
    def is_up(self) -> bool:
        """Whether it serves, and can be changed."""
        return self.phase == "ready" and self.has_driver
