"""A server within a program."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any
from weakref import finalize

from slipstream.cluster.in_process.interface.errors import InvalidArgumentError, UnavailableError, errors_of_server
from slipstream.cluster.in_process.interface.kinds import MetricFormat
from slipstream.cluster.in_process.interface.options import Options
from slipstream.cluster.in_process.interface.program_metrics import program_families
from slipstream.cluster.in_process.load_parameters import load_parameters
from slipstream.cluster.in_process.model import Model
from slipstream.cluster.in_process.model_dictionary import ModelDictionary
from slipstream.cluster.in_process.requests.infer_request import ANY_VERSION
from slipstream.cluster.in_process.running.embedded_router import EmbeddedRouter
from slipstream.cluster.in_process.running.running_server import RunningServer
from slipstream.cluster.in_process.running.server_thread import NOT_STARTED, ServerThread
from slipstream.cluster.in_process.settings import repository_config
from slipstream.router.api.kserve.server_facts import EXTENSIONS, SERVER_VERSION
from slipstream.router.tensors.model_spec import ModelPhase

UNLOADED = (None, ModelPhase.UNAVAILABLE)


class Server:
    """Serves a repository of models in this process: `start`, then `model(name).infer(...)`, then `stop`, which also
    the end of the program calls. Or `with Server(model_repository=...) as server:`, which starts it and waits until it
    is ready.

    It runs in a thread of its own, and models in processes of their own. All threads of the program may use it. A
    forked child may not. Methods raise TritonError, and InvalidArgumentError if it is not started."""

    def __init__(self, options: Options | None = None, **kwargs: Any) -> None:
        """`kwargs` are fields of Options. They are checked by `start`."""
        self.options = Options(**kwargs) if options is None else options
        self._running: RunningServer | None = None

    @property
    def running(self) -> RunningServer:
        if self._running is None:
            raise InvalidArgumentError(NOT_STARTED)
        return self._running

    def __enter__(self) -> Server:
        return self if self._running is not None else self.start(wait_until_ready=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._running is not None:
            self.stop()

    def start(
        self, wait_until_ready: bool = False, polling_interval: float = 0.1, timeout: float | None = None
    ) -> Server:
        """Returns when the models of the start have been tried. With `wait_until_ready` it raises UnavailableError if
        the server is not ready then, or is not done within `timeout` seconds; the server goes on. Raises TypeError and
        TritonError if the options are wrong, or a model cannot be loaded and that is to end the server."""
        if self._running is not None:
            raise InvalidArgumentError("Server already started")
        router = EmbeddedRouter(self.options, repository_config(self.options))
        thread = ServerThread(router.stop)
        running = RunningServer(thread, router, finalize(self, thread.stop))
        running.stop.atexit = False  # the thread sees to that, earlier
        thread.start()
        self._running = running
        try:
            with errors_of_server():
                thread.wait(router.start())
                thread.wait(router.wait_loaded(), timeout if wait_until_ready else None)
        except TimeoutError:
            raise UnavailableError("Timeout before ready") from None
        except BaseException:
            self._running = None
            running.stop()
            raise
        if wait_until_ready and not self.ready():
            raise UnavailableError(f"not ready: {self._failures()}")
        return self

    def stop(self) -> None:
        """Takes no new requests, lets the others end for `exit_timeout` seconds, and unloads the models. Raises
        InternalError if requests had to be cut off."""
        running, self._running = self.running, None
        running.stop()

    def live(self) -> bool:
        return self.running.thread.call(lambda: True)

    def ready(self) -> bool:
        """No load is pending and, with strict readiness, no model has failed."""
        repository = self.running.tensors.repository
        return self.running.thread.call(repository.is_server_ready)

    def metadata(self) -> dict[str, Any]:
        """Name, version and extensions of Triton's API."""
        self.live()
        return {"name": self.options.server_id, "version": SERVER_VERSION, "extensions": list(EXTENSIONS)}

    def model(self, model_name: str, model_version: int = ANY_VERSION) -> Model:
        return Model(self, model_name, model_version)

    def models(self, exclude_not_ready: bool = False) -> ModelDictionary:
        """The index of the repository."""
        repository = self.running.tensors.repository
        entries = self.running.thread.call(lambda: repository.index(only_ready=exclude_not_ready))
        return ModelDictionary(self, entries)

    def load(self, model_name: str, parameters: Mapping[str, str | int | bool | bytes] | None = None) -> Model:
        """Loads or reloads a model, with ModelControlMode.EXPLICIT, and waits until it is ready. `parameters` may be
        `config`, the whole configuration as JSON, and files `file:VERSION/PATH` beside it."""
        given = load_parameters(parameters or {})
        repository = self.running.tensors.repository
        with errors_of_server():
            self.running.thread.wait(repository.load(model_name, given.config_json, given.files or None))
        return self.model(model_name)

    def unload(
        self,
        model: str | Model,
        unload_dependents: bool = False,
        wait_until_unloaded: bool = False,
        polling_interval: float = 0.1,
        timeout: float | None = None,
    ) -> None:
        """Returns before the requests of the model have ended, unless it is to wait until it is unloaded, for at most
        `timeout` seconds."""
        name = model if isinstance(model, str) else model.name
        running = self.running
        with errors_of_server():
            running.thread.wait(running.tensors.repository.unload(name, with_dependents=unload_dependents))
        deadline_s = float("inf") if timeout is None else time.monotonic() + timeout
        while wait_until_unloaded and not self._is_unloaded(name) and time.monotonic() < deadline_s:
            time.sleep(polling_interval)

    def poll_model_repository(self) -> None:
        """Loads what has changed in the repository, with ModelControlMode.POLL."""
        with errors_of_server():
            self.running.thread.wait(self.running.tensors.repository.poll_once())

    def register_model_repository(self, repository_path: str, name_mapping: Mapping[str, str] | None = None) -> None:
        """Adds a folder or address, with ModelControlMode.EXPLICIT. Its models can be loaded from now on, those that
        `name_mapping` names by another name."""
        with errors_of_server():
            repository = self.running.tensors.repository
            self.running.thread.wait(repository.register(repository_path, name_mapping or {}))

    def unregister_model_repository(self, repository_path: str) -> None:
        """Models of a folder or address cannot be loaded any more, with ModelControlMode.EXPLICIT; those that serve go
        on."""
        with errors_of_server():
            self.running.thread.wait(self.running.tensors.repository.unregister(repository_path))

    def metrics(self, metric_format: MetricFormat = MetricFormat.PROMETHEUS) -> str:
        """Of the models, of the machine, and those that the program has defined."""
        page = self.running.tensors.metrics_page
        return self.running.thread.call(lambda: page.render(program_families())).decode()

    def _is_unloaded(self, name: str) -> bool:
        repository = self.running.tensors.repository
        entries = self.running.thread.call(repository.index)
        return all(entry.phase in UNLOADED for entry in entries if entry.name == name)

    def _failures(self) -> str:
        repository = self.running.tensors.repository
        entries = self.running.thread.call(repository.index)
        reasons = {entry.name: entry.reason for entry in entries if entry.reason} | dict(repository.failures)
        return "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
