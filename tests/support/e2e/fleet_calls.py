"""What an operator does to a running cluster: more workers, fewer, other roles."""

from __future__ import annotations

from typing import Any

from slipstream.cluster.admin_api.client.admin_client import AdminClient, client_of
from tests.support.e2e.observation import workers_of
from tests.support.e2e.serving_cluster import ServingCluster

FLEET_TIMEOUT_S = 100.0


def operator(serving: ServingCluster) -> AdminClient:
    state = serving.state
    assert state is not None
    return client_of(state)


def members(serving: ServingCluster) -> dict[str, dict[str, Any]]:
    """The workers that are there or on their way, by name."""
    return {member["name"]: member for member in operator(serving).get("/v1/fleet")["members"]}


def decode_workers(serving: ServingCluster) -> list[str]:
    return sorted(name for name, member in members(serving).items() if member["role"] == "decode")


def scale(serving: ServingCluster, role: str, replicas: int) -> list[str]:
    """The names of those that this adds."""
    added: list[str] = operator(serving).post("/v1/fleet/scale", {"role": role, "replicas": replicas})["added"]
    return added


def drain(serving: ServingCluster, name: str, *, migrate: bool = True) -> None:
    operator(serving).post(f"/v1/workers/{name}/drain", {"migrate": migrate})


def change_role(serving: ServingCluster, name: str, role: str) -> None:
    operator(serving).post(f"/v1/workers/{name}/role", {"role": role})


def wait_for_fleet(serving: ServingCluster, prefill: int, decode: int) -> None:
    """Returns when exactly so many of each role are there, all of them ready, known to the router and written down."""

    def is_there() -> bool:
        found = members(serving).values()
        state = serving.state
        assert state is not None
        written = {(member.name, member.role, member.state) for member in state.members if member.role != "router"}
        if written != {(member["name"], member["role"], member["state"]) for member in found}:
            return False
        if any(member["state"] != "ready" or member["is_leaving"] for member in found):
            return False
        connected = [len(workers_of(serving, role)) for role in ("prefill", "decode")]
        roles = [member["role"] for member in found]
        return [roles.count("prefill"), roles.count("decode")] == [prefill, decode] == connected

    serving.wait_for(is_there, FLEET_TIMEOUT_S)


def bring_to(serving: ServingCluster, prefill: int, decode: int) -> None:
    """So many of each role, whatever there was before."""
    scale(serving, "prefill", prefill)
    scale(serving, "decode", decode)
    wait_for_fleet(serving, prefill, decode)


def wait_until_gone(serving: ServingCluster, name: str) -> None:
    """Returns when the router knows the worker no more."""

    def is_gone() -> bool:
        connected = (*workers_of(serving, "prefill"), *workers_of(serving, "decode"))
        return name not in [worker["peer"]["name"] for worker in connected]

    serving.wait_for(is_gone, FLEET_TIMEOUT_S)


def num_requests_on(serving: ServingCluster, name: str) -> int:
    """So many requests have a part of them on a decode worker."""
    return next(int(w["num_requests"]) for w in workers_of(serving, "decode") if w["peer"]["name"] == name)
