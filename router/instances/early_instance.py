"""An instance that is connected, and that no launch wants yet."""

from __future__ import annotations

from dataclasses import dataclass, field

from slipstream.router.instances.frames.frame_connection import FrameConnection
from slipstream.router.instances.frames.frame_reader import FrameError, Json, Payload
from slipstream.router.instances.host_messages import InstanceHello

MAX_FRAMES = 1000  # that it may send meanwhile


@dataclass(slots=True, eq=False)
class EarlyInstance:
    """The receiver of its connection, `among` the others like it, by launch. What it says meanwhile (its log, metrics,
    calls) is kept for the launch that takes it."""

    hello: InstanceHello
    connection: FrameConnection
    among: dict[str, EarlyInstance]
    frames: list[tuple[Json, Payload]] = field(default_factory=list)

    def received(self, head: Json, payload: Payload) -> None:
        """Raises FrameError for too much."""
        if len(self.frames) >= MAX_FRAMES:
            raise FrameError(f"it sent {MAX_FRAMES} frames before any launch wanted it")
        self.frames.append((head, payload))

    def lost(self, reason: str) -> None:
        """It connects again by itself."""
        if self.among.get(self.hello.launch) is self:
            del self.among[self.hello.launch]

    def finalize(self) -> None:
        """No one wants it."""
        self.connection.send({"type": "finalize"})
