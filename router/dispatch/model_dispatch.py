"""One of the models that a router serves: its dispatcher, and what is known of it while it has no workers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from slipstream.router.config.router_config import DispatchConfig
from slipstream.router.dispatch.deadline_timer import DeadlineTimer
from slipstream.router.dispatch.dispatcher import Dispatcher
from slipstream.router.dispatch.table.actions import Action, Emit, EmitScores, Finish
from slipstream.router.requests.history import History


class ModelDispatch:
    """Models share nothing but the event loop and the history: each has its own queue, workers, versions and credits.
    `perform` carries out the actions that its deadlines cause."""

    __slots__ = (
        "_timer",
        "coming_max_model_len",
        "config",
        "deliver",
        "dispatcher",
        "idle",
        "is_leaving",
        "mirrored",
        "mirrored_version",
        "name",
        "note_actions",
        "num_decode_joins",
        "refusal_reason",
        "weight",
        "workers_left",
    )

    def __init__(
        self,
        name: str,
        config: DispatchConfig,
        history: History,
        perform: Callable[[ModelDispatch, Iterable[Action]], None],
    ) -> None:
        self.name = name
        self.config = config
        self.deliver: Callable[[Emit | EmitScores | Finish], None] | None = None  # None: as for all models
        self.mirrored: ModelDispatch | None = None  # of the version that gets copies of requests, if there is one
        self.mirrored_version = ""
        dispatcher = self.dispatcher = Dispatcher(config, history)
        self._timer = DeadlineTimer(dispatcher.next_deadline, lambda: perform(self, dispatcher.tick(time.monotonic())))
        self.note_actions = self._timer.look_soon  # to be called after each event of the dispatcher
        self.coming_max_model_len: int | None = None  # the longest sequence, while no decode worker is connected
        self.refusal_reason = ""  # why no decode worker can come; "": requests wait for one
        self.num_decode_joins = 0
        self.weight = 1.0  # where models divide the memory of a host
        self.is_leaving = False  # it is being removed, and takes no new requests
        self.idle = asyncio.Event()  # while it has no requests; only kept up while it is leaving
        self.workers_left = asyncio.Event()  # no worker is connected; only kept up while it is leaving

    def of_version(self, version: str) -> ModelDispatch:
        """The dispatch of the workers of this version: that of the mirrored version, or this one."""
        return self.mirrored if self.mirrored is not None and version == self.mirrored_version else self

    @property
    def has_decode_workers(self) -> bool:
        return bool(self.dispatcher.registry.decode_workers)

    @property
    def takes_workers(self) -> bool:
        """Whether a worker may join. While the model is being removed, one that has died comes back as long as requests
        need it."""
        return not self.is_leaving or self.dispatcher.num_requests > 0

    @property
    def max_model_len(self) -> int | None:
        """The longest sequence (prompt and output) that a connected decode worker takes. While none is connected, the
        longest that an expected one will take; None: not known."""
        return self.dispatcher.registry.max_model_len or self.coming_max_model_len

    def close(self) -> None:
        self._timer.close()
