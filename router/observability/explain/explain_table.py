"""Renders the JSON of `explain` as text for people: the API's text/plain, and `slipstream explain`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slipstream.router.observability.explain.explain import Json

NONE = "-"
NEGLIGIBLE = 1e-9
WHO = (("tenant", "tenant"), ("session", "session_id"), ("model", "model"), ("version", "version"))


def table(entry: Json) -> str:
    """One request in full."""
    parts = [_head(entry), _figures(entry), _predictions(entry), _stages(entry["attempts"]), _moves(entry["events"])]
    parts += [_decision(decision) for decision in entry["decisions"]]
    if entry["num_events_left_out"]:
        parts.append([f"{entry['num_events_left_out']} events between the first and the latest ones were not kept."])
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def listing(entries: Sequence[Json]) -> str:
    """Many requests, one line each."""
    if not entries:
        return "no requests\n"
    rows = [
        (
            one["request_id"],
            one["queued_at"][11:23],
            one["outcome"] or one["phase"],
            one["prefill"] or ("local" if one["decode"] else NONE),
            one["decode"] or NONE,
            str(one["num_attempts"]),
            f"{one['num_prompt_tokens']}/{one['num_cached_tokens']}/{one['num_output_tokens']}",
            millis(one["ttft_s"]),
            millis(one["itl_s"]),
            millis(one["total_s"]),
            one["tenant"] or NONE,
        )
        for one in entries
    ]
    heads = (
        "REQUEST",
        "QUEUED (UTC)",
        "OUTCOME",
        "PREFILL",
        "DECODE",
        "TRIES",
        "IN/CACHED/OUT",
        "TTFT",
        "ITL",
        "TOTAL",
    )
    return "\n".join(columns([(*heads, "TENANT"), *rows])) + "\n"


def _head(entry: Json) -> list[str]:
    names = f"  ({', '.join(entry['names'])})" if entry["names"] else ""
    total = f" after {millis(entry['total_s'])}" if entry["total_s"] else ""
    asked = [f"priority {entry['priority']}"]
    asked += [f"{key} {entry[field]}" for key, field in WHO if entry[field]]
    if entry["timeout_s"] is not None:
        asked.append(f"time-out {entry['timeout_s']:g} s")
    is_refused = entry["phase"] == "refused"
    lines = [
        f"request {entry['request_id']}{names}",
        f"  {'came' if is_refused else 'queued'} {entry['queued_at'].replace('T', ' ')}, {', '.join(asked)}",
        f"  {entry['phase']}: {entry['outcome'] or 'not finished yet'}{total}",
    ]
    error = entry["finish"] and entry["finish"]["error"]
    if error:
        lines.append(f"  {error['message']}")
    if not is_refused:
        lines.append(f"  {entry['why']}")
    transfer = entry["transfer"]
    if transfer is not None:
        took_s = transfer["seconds"]
        lines.append(f"  KV pages: {transfer['num_bytes'] / 2**20:.2f} MiB in {millis(took_s)}")
    return lines


def _figures(entry: Json) -> list[str]:
    """The numbers by which it was refused or ended."""
    error = entry["finish"] and entry["finish"]["error"]
    if not error:
        return []
    rows = [(name, f"{value:g}") for name, value in error["figures"].items()]
    if error["retry_after_s"] is not None:
        rows.append(("retry_after_s", f"{error['retry_after_s']:g}"))
    return columns([("DECIDED BY", ""), *rows], "  ") if rows else []


def _predictions(entry: Json) -> list[str]:
    if entry["phase"] == "refused":
        return []
    predicted = entry["predictions"]
    at_most = str(entry["max_output_tokens"]) if entry["max_output_tokens"] else NONE
    rows = [
        ("", "PREDICTED", "MEASURED", "ASKED FOR"),
        ("TTFT", *map(millis, both(predicted["ttft_s"])), _level(entry, "ttft_s")),
        ("ITL", *map(millis, both(predicted["itl_s"])), _level(entry, "itl_s")),
        ("output tokens", *map(count, both(predicted["output_tokens"])), at_most),
        ("cached tokens", *map(count, both(predicted["cached_tokens"])), f"of {entry['num_prompt_tokens']}"),
    ]
    return columns(rows, "  ")


def _level(entry: Json, key: str) -> str:
    own, levels = entry["slo"][key], entry["levels"]
    return millis(own) if own is not None else f"{millis(levels[key])} by default" if levels is not None else NONE


def _stages(attempts: Iterable[Json]) -> list[str]:
    rows = [("ATTEMPT", "STAGE", "FROM", "TO", "TOOK", "WHERE")]
    for attempt in attempts:
        for stage in attempt["stages"]:
            begin_s, end_s = stage["begin_s"], stage["end_s"]
            took = millis(None if end_s is None else end_s - begin_s)
            times = (millis(begin_s), millis(end_s), took)
            rows.append((str(attempt["attempt"]), stage["stage"], *times, stage["where"] or ""))
        if attempt["failure"]:
            rows.append((str(attempt["attempt"]), "failed", millis(attempt["end_s"]), "", "", attempt["failure"]))
    return columns(rows, "  ") if len(rows) > 1 else []


def _moves(events: Iterable[Json]) -> list[str]:
    """What became of an answer's moves between decode workers, and what they were for."""
    rows = [
        (millis(event["at_s"]), event["detail"]) for event in events if event["phase"] == "decode" and event["detail"]
    ]
    return columns([("AT", "MOVES"), *rows], "  ") if rows else []


def _decision(decision: Json) -> list[str]:
    where = (
        f"{decision['prefill']} -> {decision['decode']}" if decision["prefill"] else f"local on {decision['decode']}"
    )
    margin = ""
    if decision["margin"] is not None:
        ahead = decision["margin"]
        margin = f", {number(ahead)} ahead of the next" if ahead >= 0 else f", {number(-ahead)} behind a better one"
    policy = f" by {decision['policy']}" if decision["policy"] else ""
    lines = [
        f"attempt {decision['attempt']}, {millis(decision['at_s'])}: {where}{policy}: {decision['reason']}{margin}"
    ]
    candidates = decision["candidates"]
    # Terms that are 0 for every candidate are left out to keep lines short; the JSON has them.
    names = list(dict.fromkeys(name for one in candidates for name, value in one["terms"].items() if value))
    rows = [("", "PREFILL", "DECODE", "COST", *names, "CACHED", "")]
    for candidate in candidates:
        terms = [number(candidate["terms"].get(name)) for name in names]
        remark = candidate["excluded"] or ("" if candidate["fits"] else "no room")
        rows.append(
            (
                "*" if candidate["chosen"] else "",
                candidate["prefill"] or "local",
                candidate["decode"],
                number(candidate["cost"]),
                *terms,
                str(candidate["num_cached_tokens"]),
                remark,
            )
        )
    return lines + (columns(rows, "  ") if candidates else [])


def both(pair: Json) -> tuple[float | None, float | None]:
    return pair["predicted"], pair["measured"]


def millis(seconds: float | None) -> str:
    """A duration for people: in milliseconds if it is below ten seconds."""
    if seconds is None:
        return NONE
    return f"{seconds * 1e3:.2f} ms" if abs(seconds) < 10 else f"{seconds:.2f} s"


def count(number_of: float | None) -> str:
    return NONE if number_of is None else f"{number_of:g}"


def number(value: float | None) -> str:
    """Four digits; what is next to nothing, as a sum that has decayed for long, is 0."""
    return NONE if value is None else f"{value if abs(value) >= NEGLIGIBLE else 0:.4g}"


def columns(rows: Sequence[tuple[str, ...]], indent: str = "") -> list[str]:
    """Pads the cells of each column to equal width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    padded = ([cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows)
    return [(indent + "  ".join(cells)).rstrip() for cells in padded]
