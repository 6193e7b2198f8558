"""What the service of a repository needs of a version that it loads, whatever serves it: instances, the steps of an
ensemble, or the workers of a language model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from slipstream.router.infer.requests.active_request import ActiveRequest, Canceller
from slipstream.router.infer.requests.request_check import RequestCheck
from slipstream.router.infer.requests.statistics_recorder import StatisticsRecorder
from slipstream.router.model_repository.model_draft import ModelDraft
from slipstream.router.tensors.custom_metrics import CustomFamily
from slipstream.router.tensors.model_spec import ModelSpec


class ScaledInstances(Protocol):
    """The instances of a version that serves, which come and go."""

    @property
    def count(self) -> int:
        """How many are wanted: of the first group that is not passive, as `set_count` says."""

    @property
    def hosts(self) -> Mapping[str, int]:
        """How many serve or have served, by host."""

    @property
    def is_changing(self) -> bool:
        """One that is wanted does not serve yet, or one is left that is not."""

    @property
    def busy_s(self) -> float:
        """How long they have executed so far, all together."""

    def can_follow(self, draft: ModelDraft) -> bool:
        """Whether only its instance groups have changed, so that instances come or go and the others stay. Raises
        LoadError."""

    async def follow(self, draft: ModelDraft) -> None:
        """Goes on as this draft says, once all instances serve. Raises LoadError; then it is as before."""

    async def set_count(self, count: int) -> None:
        """Returns once so many serve; those that are too many end their requests first. Raises LoadError; then it is
        as before."""

    def spread(self) -> None:
        """The hosts have changed: lets instances move to one that has fewer, one after the other."""


class ServedVersion(Protocol):
    """One load of one version of a model. `load` until it is ready; then `submit`; `unload` ends it. `spec`, `check`
    and `canceller` are there once `load` has returned."""

    @property
    def draft(self) -> ModelDraft: ...
    @property
    def version(self) -> str: ...
    @property
    def recorder(self) -> StatisticsRecorder: ...
    @property
    def spec(self) -> ModelSpec: ...
    @property
    def check(self) -> RequestCheck: ...
    @property
    def canceller(self) -> Canceller: ...
    @property
    def is_down(self) -> bool:
        """It was loaded, but nothing can serve its requests for now."""

    @property
    def num_waiting(self) -> int:
        """Requests that wait to be executed."""

    @property
    def custom_families(self) -> Iterable[CustomFamily]:
        """Metrics that the model defines for itself."""

    @property
    def instances(self) -> ScaledInstances | None:
        """None: it has none."""

    async def load(self) -> None:
        """Returns once it serves. Raises LoadError; then what it has started is being ended, and `on_end` follows."""

    def submit(self, active: ActiveRequest) -> None:
        """Takes a request that has been checked. Raises InferError."""

    def unload(self) -> None:
        """Lets requests end, then ends. `on_end` follows."""

    def serve_beside(self, versions: tuple[str, ...]) -> None:
        """It goes on, while these versions of its model are served from now on."""

    async def wait_for_end(self) -> None: ...


class VersionFactory(Protocol):
    """Makes the versions of some kind of model. `on_end` is called once, when nothing is left of the version."""

    def __call__(
        self,
        draft: ModelDraft,
        version: str,
        recorder: StatisticsRecorder,
        on_end: Callable[[ServedVersion], None],
    ) -> ServedVersion: ...


@dataclass(frozen=True, slots=True)
class VersionKinds:
    """VersionFactory of all models: `by_backend` makes the versions of these backends ("": of ensembles), and `others`
    those that instances execute."""

    by_backend: Mapping[str, VersionFactory]
    others: VersionFactory

    def __call__(
        self,
        draft: ModelDraft,
        version: str,
        recorder: StatisticsRecorder,
        on_end: Callable[[ServedVersion], None],
    ) -> ServedVersion:
        return self.by_backend.get(draft.backend, self.others)(draft, version, recorder, on_end)
