"""One instance, as its owner commands it."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.router.instances.messages import (
    ExecuteRequest,
    InitializeInstance,
    InstanceResponse,
    Json,
    StartInstance,
)


class InstanceLink:
    """From `InstancePort.start` (or `found_running`) until `InstanceOwner.ended`. Commands to an instance that is not
    connected are dropped: its owner hears `connected` or `ended` next."""

    start: StartInstance

    @property
    def is_connected(self) -> bool:
        raise NotImplementedError

    @property
    def host(self) -> str:
        """The name of its host; "": no host has it yet."""
        raise NotImplementedError

    def complete_config(self, config_json: bytes) -> None:
        raise NotImplementedError

    def initialize(self, initialize: InitializeInstance) -> None:
        raise NotImplementedError

    def execute(self, batch: int, requests: Sequence[ExecuteRequest]) -> None:
        """Inputs must stay valid until the request has ended. Those larger than 64 KiB that are not in shared memory
        are copied there."""
        raise NotImplementedError

    def cancel(self, n: int) -> None:
        raise NotImplementedError

    def call_response(self, call: int, response: InstanceResponse | None, *, is_final: bool) -> None:
        """Takes the response over: the link calls its `release` when the instance has read it."""
        raise NotImplementedError

    def control_result(self, call: int, error: str | None, value: Json | bool | None = None) -> None:
        raise NotImplementedError

    def finalize(self) -> None:
        """Lets the model finalize itself and the process end, without a time limit."""
        raise NotImplementedError

    def stop(self, grace_s: float) -> None:
        """`finalize`; the host kills the process after `grace_s`. Works at any time of its life. `ended` follows."""
        raise NotImplementedError
