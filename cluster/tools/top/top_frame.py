"""One frame of `slipstream top`, from what `slipstream status --json` says. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from slipstream.cluster.commands.planner_command import action_text
from slipstream.cluster.terminal.table import aligned

Order = Literal["name", "load", "pages", "role"]
ORDERS: tuple[Order, ...] = ("name", "load", "pages", "role")
BAR_CELLS = 10
MIN_COLUMNS = 20
TENANTS = 8
NO_TENANT = "-"

Shown = Mapping[str, Any]


def frame(cluster: Shown, *, columns: int, order: Order = "name", model: str = "") -> list[str]:
    """The lines, each of at most `columns` characters. `model` shows only the workers of one."""
    lines = [*_head(cluster), *_service(cluster, model), *_planner(cluster), *_workers(cluster, order, model)]
    lines += _repository(cluster)
    width = max(columns, MIN_COLUMNS)
    return [_printable(line)[:width] for line in lines]


def bar(share: float) -> str:
    """A load of 0 to 1."""
    filled = round(min(max(share, 0.0), 1.0) * BAR_CELLS)
    return f"[{'#' * filled}{'.' * (BAR_CELLS - filled)}]"


def _head(cluster: Shown) -> Iterator[str]:
    router = cluster.get("router")
    if router is None:
        yield f"{cluster.get('name', '?')}: {cluster.get('phase', '?')}, the router does not answer now"
        return
    load = f"{router['num_running']} running, {router['num_waiting']} waiting"
    yield f"{cluster.get('name', '?')}: {cluster.get('phase', '?')}  {load}  {len(router['workers'])} workers"
    queue = router.get("queue_depth") or {}
    waiting = ", ".join(f"class {name}: {depth}" for name, depth in sorted(queue.items()) if depth)
    if waiting:
        yield f"queue  {waiting}"
    tenants = router.get("longest_queues") or {}
    longest = sorted(tenants.items(), key=lambda one: (-one[1], one[0]))[:TENANTS]
    if any(tenants):  # without keys there is one without a name, and its queue is the whole
        yield f"queue by tenant  {', '.join(f'{name or NO_TENANT}: {depth}' for name, depth in longest)}"


def _service(cluster: Shown, model: str) -> Iterator[str]:
    by_model = cluster.get("signals_by_model") or {"": cluster.get("signals")}
    for name, signals in by_model.items():
        if signals is None or (model and name and name != model):
            continue
        window = signals["short"]
        span_s, ttft, itl = window["span_s"], window["ttft_s"], window["itl_s"]
        rate = window["num_arrivals"] / span_s if span_s > 0 else 0.0
        parts = [
            f"{rate:.1f} req/s",
            f"TTFT p50 {ttft['p50']:.2f} p99 {ttft['p99']:.2f} s" if ttft["count"] else "",
            f"ITL p50 {1e3 * itl['p50']:.0f} p99 {1e3 * itl['p99']:.0f} ms" if itl["count"] else "",
            f"{window['num_refused']} refused" if window["num_refused"] else "",
            f"{window['num_failed']} failed" if window["num_failed"] else "",
        ]
        yield f"{name + ': ' if name else ''}{', '.join(filter(None, parts))}  (last {span_s:.0f} s)"


def _planner(cluster: Shown) -> Iterator[str]:
    """The latest decisions, if a planner is enabled."""
    for one in cluster.get("decisions") or ():
        at = time.strftime("%H:%M:%S", time.localtime(one["unix_s"]))
        actions = ", ".join(map(action_text, one["actions"])) or one["reason"]
        model = f"{one['model']}: " if one.get("model") else ""
        yield f"planner {at}  {model}{actions}: {one['why']}"


def _workers(cluster: Shown, order: Order, model: str) -> Iterator[str]:
    router = cluster.get("router")
    if router is None:
        return
    workers = [one for one in router["workers"] if not model or one.get("model", "") in ("", model)]
    rows: list[Sequence[str]] = [("WORKER", "ROLE", "SLOTS", "", "KV PAGES", "", "REQ", "MODEL")]
    for one in sorted(workers, key=_key(order)):
        slots, pages = f"{_slots(one):4.0%}", f"{_pages(one):4.0%}"
        state = f"{one['role']} drains" if one.get("draining") else one["role"]
        name = one["peer"]["name"]
        rows.append(
            (name, state, bar(_slots(one)), slots, bar(_pages(one)), pages, str(one["num_requests"]), _model(one))
        )
    yield ""
    yield from aligned(rows)


def _repository(cluster: Shown) -> Iterator[str]:
    repository = (cluster.get("router") or {}).get("repository") or {}
    instances = {(one["model"], one["version"]): one["count"] for one in repository.get("instances") or ()}
    rows: list[Sequence[str]] = [("TENSOR MODEL", "VERSION", "STATE", "INSTANCES")]
    for one in repository.get("models") or ():
        count = instances.get((one["name"], one["version"]))
        state = " ".join(filter(None, (one["state"], one["reason"])))
        rows.append((one["name"], one["version"], state, "-" if count is None else str(count)))
    if len(rows) > 1:
        yield ""
        yield from aligned(rows)


def _key(order: Order) -> Callable[[Shown], tuple[Any, ...]]:
    keys: dict[Order, Callable[[Shown], Any]] = {
        "name": lambda one: 0,
        "load": lambda one: -_slots(one),
        "pages": lambda one: -_pages(one),
        "role": lambda one: one["role"],
    }
    return lambda one: (keys[order](one), one["peer"]["name"])


def _slots(worker: Shown) -> float:
    return 1 - worker["free_slots"] / worker["max_slots"] if worker["max_slots"] else 0.0


def _pages(worker: Shown) -> float:
    return 1 - worker["free_pages"] / worker["num_pages"] if worker["num_pages"] else 0.0


def _model(worker: Shown) -> str:
    version = worker.get("version", "")
    return f"{worker.get('model', '')}{'@' + version if version else ''}"


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text)
