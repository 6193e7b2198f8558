"""The admin API of a cluster on this machine. Its driver may end and be followed by another one; the state file tells
of that."""

from __future__ import annotations

import time
from typing import Any

from slipstream.cluster.admin_api.client.admin_client import AdminClient, UnreachableError, client_of
from slipstream.cluster.admin_api.client.admin_port import DEFAULT, CallOptions
from slipstream.cluster.processes import process_tree
from slipstream.cluster.state import host_folders, state_file
from slipstream.cluster.state.cluster_state import ClusterState
from slipstream.cluster.terminal import console
from slipstream.cluster.terminal.command_error import CommandError

LOOK_EVERY_S = 0.2
ENDING_S = 2.0  # that a killed driver takes to be gone once its connections are
BEHIND_S = 15.0  # after which the driver itself is asked: where the disk is full, the state file is behind


class LocalAdmin:
    """Calls wait for the cluster while it is starting, and say so at the terminal. They do not wait for one that is
    gone, and a guardian that starts drivers in vain goes, too."""

    def __init__(self, state: ClusterState, token: str | None, reason: str = "") -> None:
        """Raises CommandError if the cluster serves no admin API."""
        self._state = state
        self._token = token
        self._reason = reason
        self.restarts = 0
        client_of(state, token)

    def get(self, path: str) -> dict[str, Any]:
        while True:
            try:
                return self._when_up().get(path)
            except UnreachableError as error:
                self._check_ended(error)

    def post(self, path: str, body: dict[str, Any] | None = None, options: CallOptions = DEFAULT) -> dict[str, Any]:
        while True:
            driver = self._when_up() if options.waits else self._if_up()
            try:
                return driver.post(path, body, options)
            except UnreachableError as error:
                self._check_ended(error)
                if not options.may_repeat:
                    raise CommandError(
                        f"the driver of {self._state.name} ended before it had answered, so this is probably not done; "
                        f"`slipstream status {self._state.name}` shows what is"
                    ) from error

    def _if_up(self) -> AdminClient:
        """A client for the driver. Raises CommandError if there is none that serves."""
        state = self._latest()
        if not state.is_up:
            raise CommandError(f"{state.name} is not up, and its workers will be others; nothing has been done")
        return self._client(state)

    def _when_up(self) -> AdminClient:
        """A client for the driver, once there is one that serves."""
        since_s: float | None = None
        while not (state := self._latest()).is_up:
            if since_s is None:
                what = state.phase if state.has_driver else "starting again"
                console.error(f"{state.name} is {what}; waiting for it")
                since_s = time.monotonic()
            elif time.monotonic() - since_s >= BEHIND_S and _answers(client_of(state, self._token)):
                break
            time.sleep(LOOK_EVERY_S)
        return self._client(state)

    def _client(self, state: ClusterState) -> AdminClient:
        if (state.driver, state.driver_started) != (self._state.driver, self._state.driver_started):
            self.restarts += 1
        self._state = state
        return client_of(state, self._token, self._reason)

    def _latest(self) -> ClusterState:
        """The state now. Raises CommandError if the cluster has ended."""
        ours = self._state
        state = state_file.read(host_folders.run_folder() / f"{ours.name}.json")
        if state is None or (state.pid, state.started) != (ours.pid, ours.started) or state.is_stale:
            raise CommandError(f"{ours.name} has ended")
        return state

    def _check_ended(self, error: UnreachableError) -> None:
        """Raises the error if the driver is still there, and has another reason not to answer."""
        asked = self._state
        if process_tree.wait_until_gone(asked.driver, asked.driver_started, ENDING_S) or not self._latest().is_up:
            return
        raise error


def _answers(admin: AdminClient) -> bool:
    try:
        admin.get("/v1/fleet")
    except UnreachableError:
        return False
    return True
