"""The life of one version of a model: its instances start, complete the configuration, initialise, are warmed up and
serve; they die and come back; at the end they stop.

    LOADING --all instances serve--> READY --unload--> UNLOADING --drained, all instances gone--> UNAVAILABLE
       \\--one instance fails-----------------------------------------------------------^

An instance:

    PLANNED -> STARTING -> [COMPLETING] -> WAITING -> INITIALIZING -> WARMING -> SERVING
                  ^                                                                  |
                  +------------ DEAD (its restart has a time) <----------------------+        any -> STOPPING -> GONE

    SERVING --there are to be fewer, or it moves--> LEAVING --its requests have ended--> STOPPING -> GONE, or STARTING

The first instance completes the configuration for all; the others wait for that. It has no clock and no I/O: every call
returns what is to be done.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from slipstream.router.infer.lives.restart_backoff import RestartBackoff
from slipstream.router.tensors.model_spec import ModelPhase

DEATHS_UNTIL_DOWN = 3  # of the instance that died least often, in a row
MAX_HOSTS_LOST = 3  # by an instance that is loaded: it may be what ends them


class InstancePhase(Enum):
    PLANNED = "planned"
    STARTING = "starting"
    COMPLETING = "completing"
    WAITING = "waiting"
    INITIALIZING = "initializing"
    WARMING = "warming"
    SERVING = "serving"
    LEAVING = "leaving"
    DEAD = "dead"
    STOPPING = "stopping"
    GONE = "gone"


class Do(Enum):
    """What is to be done with an instance. LOADED, FAILED and END are about the version: it serves, it will not, and
    none of its processes is left."""

    START = "start"
    COMPLETE = "complete"
    INITIALIZE = "initialize"
    WARM = "warm"
    SERVE = "serve"
    DRAIN = "drain"  # it gets no new requests, but those that its sequences need; `emptied` follows
    RETIRE = "retire"  # it gets no more requests
    STOP = "stop"
    LOADED = "loaded"
    FAILED = "failed"
    END = "end"


@dataclass(frozen=True, slots=True)
class Action:
    do: Do
    instance: str = ""


@dataclass(frozen=True, slots=True)
class ProcessEnd:
    """`was_useful`: it had executed something. `is_host_lost`: it did not end by itself."""

    reason: str
    was_useful: bool = False
    is_host_lost: bool = False


@dataclass(slots=True)
class InstanceLife:
    name: str
    phase: InstancePhase = InstancePhase.PLANNED
    is_initialized: bool = False  # its process said so when it connected
    num_hosts_lost: int = 0  # before it has served
    is_unwanted: bool = False  # there are to be fewer: it is forgotten once its process is gone
    is_moving: bool = False  # it starts anew, perhaps elsewhere, once its process is gone
    restart_s: float | None = None
    backoff: RestartBackoff = field(default_factory=RestartBackoff)

    @property
    def has_process(self) -> bool:
        return self.phase not in (InstancePhase.PLANNED, InstancePhase.DEAD, InstancePhase.GONE)


class VersionLife:
    """`completes`: the first instance is asked for the configuration."""

    def __init__(self, instances: Sequence[str], *, completes: bool) -> None:
        self.phase = ModelPhase.LOADING
        self.reason = ""
        self._instances = {name: InstanceLife(name) for name in instances}
        self._is_complete = not completes
        self._is_draining = False  # UNLOADING, and requests are left
        self._is_over = False

    @property
    def instances(self) -> dict[str, InstancePhase]:
        return {name: instance.phase for name, instance in self._instances.items()}

    @property
    def num_serving(self) -> int:
        return sum(instance.phase is InstancePhase.SERVING for instance in self._instances.values())

    @property
    def is_down(self) -> bool:
        """It was loaded, but all instances have died and do not come back."""
        if not self._has_use or not self._instances:
            return False
        for instance in self._instances.values():
            if instance.phase is InstancePhase.SERVING or instance.backoff.num_deaths < DEATHS_UNTIL_DOWN:
                return False
        return True

    @property
    def _has_use(self) -> bool:
        """Of instances: there are requests for them, or may be."""
        return self.phase is ModelPhase.READY or self._is_draining

    @property
    def next_time(self) -> float | None:
        """When `due` is to be called."""
        times = [instance.restart_s for instance in self._instances.values() if instance.restart_s is not None]
        return min(times, default=None)

    @property
    def is_changing(self) -> bool:
        """An instance that is wanted does not serve, or one is left that is not."""
        return self.num_serving < len(self._instances)

    def begin(self) -> list[Action]:
        if not self._instances:  # a model whose backend needs none
            return self._loaded()
        return [self._start(instance) for instance in self._instances.values()]

    def connected(self, name: str, now: float, *, is_ready: bool = False) -> list[Action]:
        """The process of an instance has connected. `is_ready`: it is initialised, by the router before this one or
        over an earlier connection."""
        instance = self._instances[name]
        if instance.phase is not InstancePhase.STARTING:
            return []
        instance.is_initialized = is_ready
        if not self._is_complete:
            if name == next(iter(self._instances)):
                instance.phase = InstancePhase.COMPLETING
                return [Action(Do.COMPLETE, name)]
            instance.phase = InstancePhase.WAITING
            return []
        return self._prepare(instance, now)

    def disconnected(self, name: str) -> list[Action]:
        """The connection of an instance is lost; its process may connect again, or end."""
        instance = self._instances[name]
        if instance.phase is InstancePhase.LEAVING:
            return self._emptied(instance)
        was_serving = instance.phase is InstancePhase.SERVING
        if instance.phase is not InstancePhase.STOPPING:
            instance.phase = InstancePhase.STARTING
        return [Action(Do.RETIRE, name)] if was_serving else []

    def completed(self, now: float) -> list[Action]:
        """The configuration is complete, and accepted."""
        self._is_complete = True
        waiting = (InstancePhase.COMPLETING, InstancePhase.WAITING)
        instances = [instance for instance in self._instances.values() if instance.phase in waiting]
        return [action for instance in instances for action in self._prepare(instance, now)]

    def initialized(self, name: str) -> list[Action]:
        instance = self._instances[name]
        if instance.phase is not InstancePhase.INITIALIZING:
            return []
        instance.phase = InstancePhase.WARMING
        return [Action(Do.WARM, name)]

    def warmed(self, name: str, now: float) -> list[Action]:
        instance = self._instances[name]
        return self._serve(instance, now) if instance.phase is InstancePhase.WARMING else []

    def resize(self, names: Sequence[str]) -> list[Action]:
        """These are its instances from now on. Those that are no more among them end their requests first."""
        if self.phase is not ModelPhase.READY:
            return []
        actions = []
        for name in names:
            instance = self._instances.get(name)
            if instance is None:
                instance = self._instances[name] = InstanceLife(name)
                actions.append(self._start(instance))
            elif instance.is_unwanted:
                instance.is_unwanted, instance.is_moving = False, True
        for instance in list(self._instances.values()):
            if instance.name not in names and not instance.is_unwanted:
                instance.is_unwanted, instance.is_moving = True, False
                actions += self._let_go(instance)
        return actions

    def move(self, name: str) -> list[Action]:
        """One that serves is to start anew on another host, once its requests have ended."""
        instance = self._instances[name]
        if self.phase is not ModelPhase.READY or instance.phase is not InstancePhase.SERVING:
            return []
        instance.is_moving = True
        return self._let_go(instance)

    def emptied(self, name: str) -> list[Action]:
        """The requests have ended of an instance that leaves."""
        instance = self._instances.get(name)
        return self._emptied(instance) if instance is not None and instance.phase is InstancePhase.LEAVING else []

    def given_up(self, reason: str) -> list[Action]:
        """The load has failed, perhaps before it has begun."""
        return self._fail(reason) if self.phase is ModelPhase.LOADING else []

    def failed(self, name: str, reason: str) -> list[Action]:
        """An instance could not be completed, initialised or warmed up. Its process may still have to be stopped."""
        if self.phase is ModelPhase.LOADING:
            return self._fail(reason)
        instance = self._instances[name]
        settled = (InstancePhase.SERVING, InstancePhase.LEAVING, InstancePhase.STOPPING)
        if self._has_use and instance.has_process and instance.phase not in settled:
            instance.phase = InstancePhase.STOPPING
            return [Action(Do.STOP, name)]  # and it will be started again
        return []

    def ended(self, name: str, end: ProcessEnd, now: float) -> list[Action]:
        """The process of an instance is gone."""
        instance = self._instances[name]
        had_requests = instance.phase in (InstancePhase.SERVING, InstancePhase.LEAVING)
        actions = [Action(Do.RETIRE, name)] if had_requests else []
        if self._has_use and instance.is_unwanted:
            del self._instances[name]
            return actions
        if self._has_use and instance.is_moving:
            instance.is_moving = False
            return [*actions, self._start(instance)]
        if end.is_host_lost and self._starts_elsewhere(instance):
            return [*actions, self._start(instance)]
        if self._has_use:
            instance.phase = InstancePhase.DEAD
            instance.restart_s = instance.backoff.died(now, was_useful=end.was_useful)
            return actions
        instance.phase = InstancePhase.GONE
        if self.phase is ModelPhase.LOADING:
            return [*actions, *self._fail(end.reason)]
        return [*actions, *self._gone()]

    def due(self, now: float) -> list[Action]:
        """Starts the instances again whose pause is over."""
        actions = []
        for instance in self._instances.values():
            if instance.restart_s is not None and instance.restart_s <= now:
                actions.append(self._start(instance))
        return actions

    def unload(self, *, has_requests: bool) -> list[Action]:
        """Serves no new requests. The instances stop once the requests have ended, which `drained` says; those that die
        until then come back."""
        if self.phase not in (ModelPhase.READY, ModelPhase.LOADING):
            return []
        self.phase, self._is_draining = ModelPhase.UNLOADING, has_requests
        return [] if has_requests else self._stop_all()

    def drained(self) -> list[Action]:
        self._is_draining = False
        return self._stop_all() if self.phase is ModelPhase.UNLOADING else []

    def _let_go(self, instance: InstanceLife) -> list[Action]:
        if instance.phase is InstancePhase.SERVING:
            instance.phase = InstancePhase.LEAVING
            return [Action(Do.DRAIN, instance.name)]
        if not instance.has_process:
            del self._instances[instance.name]
            return []
        if instance.phase in (InstancePhase.LEAVING, InstancePhase.STOPPING):
            return []
        instance.phase = InstancePhase.STOPPING
        return [Action(Do.STOP, instance.name)]

    def _emptied(self, instance: InstanceLife) -> list[Action]:
        instance.phase = InstancePhase.STOPPING
        return [Action(Do.RETIRE, instance.name), Action(Do.STOP, instance.name)]

    def _starts_elsewhere(self, instance: InstanceLife) -> bool:
        """Its host was lost: whether the next one is to start it."""
        instance.num_hosts_lost += 1
        if self.phase is ModelPhase.LOADING:
            return instance.num_hosts_lost <= MAX_HOSTS_LOST
        return self._has_use

    def _start(self, instance: InstanceLife) -> Action:
        instance.phase, instance.restart_s = InstancePhase.STARTING, None
        return Action(Do.START, instance.name)

    def _prepare(self, instance: InstanceLife, now: float) -> list[Action]:
        if instance.is_initialized:
            return self._serve(instance, now)
        instance.phase = InstancePhase.INITIALIZING
        return [Action(Do.INITIALIZE, instance.name)]

    def _serve(self, instance: InstanceLife, now: float) -> list[Action]:
        instance.phase = InstancePhase.SERVING
        instance.backoff.served(now)
        instance.num_hosts_lost = 0
        actions = [Action(Do.SERVE, instance.name)]
        is_loaded = self.phase is ModelPhase.LOADING and self.num_serving == len(self._instances)
        return actions + self._loaded() if is_loaded else actions

    def _loaded(self) -> list[Action]:
        self.phase = ModelPhase.READY
        return [Action(Do.LOADED)]

    def _fail(self, reason: str) -> list[Action]:
        self.phase, self.reason = ModelPhase.UNAVAILABLE, reason
        return [*self._stops(), Action(Do.FAILED), *self._gone()]

    def _stops(self) -> list[Action]:
        actions = []
        for instance in self._instances.values():
            if instance.phase is InstancePhase.DEAD:
                instance.phase, instance.restart_s = InstancePhase.GONE, None
            if instance.phase in (InstancePhase.SERVING, InstancePhase.LEAVING):
                actions.append(Action(Do.RETIRE, instance.name))
            if instance.has_process and instance.phase is not InstancePhase.STOPPING:
                instance.phase = InstancePhase.STOPPING
                actions.append(Action(Do.STOP, instance.name))
        return actions

    def _stop_all(self) -> list[Action]:
        return [*self._stops(), *self._gone()]

    def _gone(self) -> list[Action]:
        """END, once, when no process is left."""
        if self._is_over or any(instance.has_process for instance in self._instances.values()):
            return []
        self._is_over = True
        if self.phase is ModelPhase.UNLOADING:
            self.phase, self.reason = ModelPhase.UNAVAILABLE, "unloaded"
        return [Action(Do.END)]
