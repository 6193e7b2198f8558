"""The clusters on this machine, by their state files."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from slipstream.cluster.state.cluster_state import ClusterState
from slipstream.cluster.state.host_folders import NoHome, run_folder
from slipstream.cluster.state.state_file import read
from slipstream.cluster.terminal.command_error import CommandError


def read_all(folder: Path) -> list[ClusterState]:
    """All clusters that run on this machine."""
    return [state for path in _files(folder) if (state := read(path)) is not None and not state.is_stale]


def sweep(folder: Path) -> list[ClusterState]:
    """Those that have ended without an order, and were not reported so far: their files are removed now. One whose
    driver is still at it keeps its file until that ends."""
    found = []
    for path in _files(folder):
        state = read(path)
        if state is not None and state.is_stale:
            found.append(state)
            if not state.has_driver:
                with suppress(OSError):  # a folder that cannot be written: it will be reported again
                    path.unlink(missing_ok=True)
    return found


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.json"))


def remove_those_of(guardian: int) -> None:
    """Removes what the drivers of that guardian have left, which is about to end."""
    with suppress(NoHome, OSError):
        for path in run_folder().glob("*.json"):
            state = read(path)
            if state is not None and state.pid == guardian:
                path.unlink(missing_ok=True)


def cluster_here(name: str | None, elsewhere: str, among_several: str | None = None) -> ClusterState:
    """The cluster called `name` or, without a name, the only one that runs on this machine; if there are several, the
    one called `among_several`. Raises CommandError, which mentions that options like `elsewhere` find clusters on other
    machines."""
    states = [state for state in read_all(run_folder()) if name in (None, state.name)]
    if not states:
        which = f"no cluster named {name} runs here" if name is not None else "no cluster runs here"
        ended = "".join(f"; {one.name} has ended: {one.last_words}" for one in sweep(run_folder()))
        raise CommandError(f"{which}{ended}; for one elsewhere give {elsewhere}")
    if len(states) > 1 and among_several is not None:
        states = [state for state in states if state.name == among_several] or states
    if len(states) > 1:
        names = ", ".join(state.name for state in states)
        raise CommandError(f"several clusters run here, say which one with --name: {names}")
    return states[0]
