"""A tensor request's record as JSON, and as text for people: where it was when, which instances executed it and with
how many others, and how it ended. All times are in seconds; a time that has not come yet is null."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from slipstream.router.infer.requests.request_record import Execution, InferRecord, StepRecord
from slipstream.router.observability.explain.explain import Json, moment, since


def infer_summary(record: InferRecord, unix_offset_s: float) -> Json:
    """One request as an item of a list. `unix_offset_s` plus a time of the record is seconds since 1970."""
    received_s, executions = record.received_s, record.executions
    return {
        "request_id": record.request_id,
        "client_id": record.client_id or None,
        "kind": "infer",
        "received_at": moment(received_s + unix_offset_s),
        "phase": phase_of(record),
        "outcome": record.outcome or None,
        "tenant": record.tenant,
        "model": record.model,
        "version": record.version,
        "instance": executions[-1].instance if executions else None,
        "num_attempts": len(executions),
        "num_rows": record.batch_size,
        "num_responses": record.num_responses,
        "queue_s": queue_s_of(record),
        "total_s": since(received_s, record.ended_s),
    }


def infer_explanation(record: InferRecord, unix_offset_s: float) -> Json:
    """Everything that is known about one request, running or ended."""
    received_s, compute_s = record.received_s, record.compute_s
    return {
        **infer_summary(record, unix_offset_s),
        "parent_id": record.parent_id or None,
        "version_reason": record.version_reason or None,
        "is_cache_hit": record.is_cache_hit,
        "timeline": {
            "received": 0.0,
            "queued": since(received_s, record.queued_s),
            "executed": since(received_s, record.executions[-1].started_s) if record.executions else None,
            "first_response": since(received_s, record.first_response_s),
            "ended": since(received_s, record.ended_s),
        },
        "executions": [execution_json(execution, received_s) for execution in record.executions],
        "num_steps": record.num_steps,
        "steps": [step_json(step, received_s) for step in record.steps],
        "compute": None if compute_s is None else dict(zip(("input_s", "infer_s", "output_s"), compute_s, strict=True)),
        "error": record.error or None,
    }


def queue_s_of(record: InferRecord) -> float | None:
    """How long it has waited; of an ensemble, its steps together."""
    if record.num_steps:
        return record.queue_s
    return since(record.queued_s, record.executions[0].started_s) if record.executions else None


def phase_of(record: InferRecord) -> str:
    if record.outcome:
        return "finished"
    return "executing" if record.executions or record.steps else "queued"


def execution_json(execution: Execution, received_s: float) -> Json:
    return {
        "instance": execution.instance,
        "at_s": since(received_s, execution.started_s),
        "batch_requests": execution.num_requests,
        "batch_rows": execution.num_rows,
    }


def step_json(step: StepRecord, received_s: float) -> Json:
    """A request of an ensemble to one of its models. Times count from the receipt of the ensemble's request."""
    record = step.record
    executions, compute_s = record.executions, record.compute_s
    return {
        "request_id": record.request_id,
        "model": record.model,
        "version": record.version,
        "reads": list(step.reads),
        "writes": list(step.writes),
        "outcome": record.outcome or None,
        "instance": executions[-1].instance if executions else None,
        "started_s": since(received_s, record.queued_s),
        "queue_s": queue_s_of(record),
        "compute_s": None if compute_s is None else sum(compute_s),
        "ended_s": since(received_s, record.ended_s),
        "num_responses": record.num_responses,
        "is_cache_hit": record.is_cache_hit,
        "steps": [step_json(inner, received_s) for inner in record.steps],
    }


def infer_text(entry: Json) -> str:
    """The explanation as text."""
    name = f"request {entry['request_id'] or '-'} to {entry['model']}, version {entry['version']}"
    lines = [f"{name}: {entry['outcome'] or entry['phase']}"]
    lines.append(f"  received {entry['received_at']}, {entry['num_rows']} rows")
    if entry["parent_id"]:
        lines.append(f"  made by the model that serves request {entry['parent_id']}")
    if entry["version_reason"]:
        lines.append(f"  version {entry['version']}: {entry['version_reason']}")
    if entry["is_cache_hit"]:
        lines.append("  answered from the response cache")
    for number, execution in enumerate(entry["executions"], 1):
        batch = f"{execution['batch_requests']} requests, {execution['batch_rows']} rows"
        lines.append(f"  {exact_millis(execution['at_s'])}  execution {number} by {execution['instance']}: {batch}")
    lines += step_lines(entry["steps"], "  ")
    if entry["num_steps"] > len(entry["steps"]):
        lines.append(f"  ... and {entry['num_steps'] - len(entry['steps'])} further steps")
    if entry["compute"] is not None:
        parts = ", ".join(f"{part[:-2]} {exact_millis(took_s)}" for part, took_s in entry["compute"].items())
        lines.append(f"  {'all steps' if entry['steps'] else 'the instance'} took: {parts}")
    if entry["total_s"] is not None:
        lines.append(f"  {exact_millis(entry['total_s'])}  ended, {entry['num_responses']} responses")
    if entry["error"]:
        lines.append(f"  {entry['error'].rstrip()}")
    return "\n".join(lines) + "\n"


def step_lines(steps: Iterable[Json], indent: str) -> Iterator[str]:
    """The steps of an ensemble, in the order in which they began; those of a nested one below it."""
    for step in steps:
        flow = f"{', '.join(step['reads'])} -> {', '.join(step['writes'])}"
        where = f" by {step['instance']}" if step["instance"] else ""
        took = f"waited {exact_millis(step['queue_s'])}, took {exact_millis(step['compute_s'])}"
        took = "answered from the response cache" if step["is_cache_hit"] else took
        span = f"{exact_millis(step['started_s'])} to {exact_millis(step['ended_s'])}"
        yield f"{indent}{span}  step {step['model']}:{step['version']} ({flow}){where}: {took}"
        yield from step_lines(step["steps"], indent + "  ")


def infer_listing(entries: Iterable[Json]) -> str:
    """Many requests, one line each."""
    rows = [
        f"{one['request_id'] or '-':<40} {one['received_at'][11:23]} {one['outcome'] or one['phase']:<10} "
        f"{one['model']}:{one['version']} {one['instance'] or '-'} {exact_millis(one['total_s'])}"
        for one in entries
    ]
    return "\n".join(rows) + "\n" if rows else "no requests\n"


def exact_millis(seconds: float | None) -> str:
    """To a microsecond: a request may take less than a millisecond."""
    return "-" if seconds is None else f"{seconds * 1e3:.3f} ms"
