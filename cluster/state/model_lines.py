"""The lines of `slipstream status` about the models of a cluster that serves several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from slipstream.cluster.state.cluster_state import ClusterState


def model_lines(state: ClusterState, signals: Mapping[str, dict[str, Any] | None]) -> Iterator[str]:
    """One line for each model; `signals` by model, as far as they are known."""
    for model in state.models:
        phase, reason = state.phase_of(model)
        states = Counter((member.role, member.state) for member in state.members_of(model))
        workers = ", ".join(f"{count} {role} {what}" for (role, what), count in sorted(states.items()))
        parts = [workers or "no workers"]
        if model.version:
            parts.append(f"version {model.version}")
        if model.asked:
            parts.append("for the repository")
        queue = signals.get(model.model)
        if queue is not None:
            parts.append(f"{queue['num_running']} running, {queue['num_waiting']} waiting")
        yield f"  {model.model}: {phase}{f' ({reason})' if reason else ''}; {'; '.join(parts)}"
