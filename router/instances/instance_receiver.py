"""Turns the frames of an instance into calls of its owner."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from slipstream.router.instances.frames.frame_reader import FrameError, Json, Payload
from slipstream.router.instances.frames.tensor_places import PlaceReader
from slipstream.router.instances.instance_messages import instance_message, known_code, response_error
from slipstream.router.instances.instance_owner import InstanceOwner
from slipstream.router.instances.instance_session import InstanceSession
from slipstream.router.instances.messages import (
    CallCancelled,
    Completed,
    ControlCall,
    Executed,
    InstanceFailed,
    InstanceMessage,
    InstanceResponse,
    LogLine,
    MetricsChanged,
    ModelCall,
    Ready,
    Released,
    Responded,
)


class InstanceReceiver:
    """Of one session. `lost` is what the end of the connection is reported to."""

    def __init__(
        self,
        session: InstanceSession,
        owner: InstanceOwner,
        places: PlaceReader,
        lost: Callable[[InstanceSession, str], None],
    ) -> None:
        self._session = session
        self._owner = owner
        self._places = places
        self._lost = lost

    def received(self, head: Json, payload: Payload) -> None:
        """Raises FrameError for what an instance may not say."""
        try:
            message = self._message(head, payload)
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise FrameError(f"a bad {head['type']!r} of an instance: {error!r}") from error
        self._deliver(message)

    def lost(self, reason: str) -> None:
        self._lost(self._session, reason)

    def _message(self, head: Json, payload: Payload) -> InstanceMessage:
        match head["type"]:
            case "executed":
                return self._executed(head, payload)
            case "response":
                n = head["n"]
                return Responded(n, self._response(n, head["response"], payload), bool(head["final"]))
            case _:
                return instance_message(head, payload, self._places)

    def _executed(self, head: Json, payload: Payload) -> Executed:
        session = self._session
        numbers = session.batch_numbers
        fields = head["responses"]
        if head["batch"] != session.batch:
            raise FrameError(f"batch {head['batch']} is not the one that is executed")
        if fields and len(fields) != len(numbers):
            raise FrameError(f"{len(fields)} responses to {len(numbers)} requests")
        responses = [self._response(n, response, payload) for n, response in zip(numbers, fields, strict=False)]
        return Executed(
            head["batch"],
            responses,
            head.get("error"),
            head.get("rescheduled") or [],
            head["compute_ns"],
            head["input_ns"],
            head["output_ns"],
            head.get("error_code"),
            self._places.lost(head.get("lost_file")),
        )

    def _response(self, n: int, fields: dict[str, Any] | None, payload: Payload) -> InstanceResponse | None:
        if fields is None:
            return None
        outputs, places = self._places.outputs(fields["outputs"], payload, self._session.requests.into(n))
        return InstanceResponse(
            outputs,
            response_error(fields["error"]),
            fields["parameters"] or {},
            functools.partial(self._session.give_back, places) if places else None,
        )

    def _deliver(self, message: InstanceMessage) -> None:
        owner, session = self._owner, self._session
        match message:
            case Executed():
                self._end_requests(message)
                owner.executed(message)
            case Responded():
                self._responded(message)
            case Released():
                session.lent.released(message.places)
            case ModelCall():
                session.calls.add(message.call)
                owner.called(message)
            case CallCancelled():
                owner.call_cancelled(message.call)
            case ControlCall():
                session.calls.add(message.call)
                owner.controlled(message)
            case LogLine():
                owner.logged(message)
            case MetricsChanged():
                owner.metrics_changed(message.families)
            case Completed():
                owner.completed(message.config)
            case Ready():
                owner.ready()
            case InstanceFailed():
                owner.failed(message.error, known_code(message.code))

    def _responded(self, message: Responded) -> None:
        if message.n in self._session.requests:
            if message.is_final:
                self._session.requests.end(message.n)
            self._owner.responded(message.n, message.response, is_final=message.is_final)
        elif message.response is not None and message.response.release is not None:
            message.response.release()  # the request has ended before, with an error

    def _end_requests(self, executed: Executed) -> None:
        """Those of the batch that are over now. A request whose response comes later stays."""
        session = self._session
        requests = session.requests
        session.batch = None
        if executed.error is not None:
            for n in session.batch_numbers:
                requests.end(n)
            return
        for n, response in zip(session.batch_numbers, executed.responses, strict=False):
            if response is not None:
                requests.end(n)
        for n in (*session.null_numbers, *executed.rescheduled):
            requests.end(n)
