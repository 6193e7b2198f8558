"""Which workers can exchange KV pages, and which of them compute alike. Pure; from what they say in their greetings.

    layouts differ    no page may move between them: they are never paired (`mismatch`, `refused_pairs`)
    builds differ     pages may move, but the two may round differently, so a request that moves may continue with
                      another token (`drift`)

What a worker does not say is not held against it: a mock worker has no pages, and 0.1.0 does not say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields

from slipstream.router.protocol.messages import PROTOCOL_VERSION, Build, Hello, PageLayout

# What decides each field, where that is a setting.
SETTINGS = {"page_dtype": "kv_cache_dtype, dtype", "head_bytes": "page_tokens, kv_cache_dtype, dtype"}
MAX_NAMES = 4  # of workers in a sentence


@dataclass(frozen=True, slots=True)
class RefusedPairs:
    """Prefill and decode workers of a version that are never paired, with the reason."""

    prefills: tuple[str, ...]
    decodes: tuple[str, ...]
    reason: str

    @property
    def count(self) -> int:
        return len(self.prefills) * len(self.decodes)

    def __str__(self) -> str:
        return f"{_names(self.prefills)} and {_names(self.decodes)} exchange no pages: {self.reason}"


def fits(one: PageLayout, other: PageLayout) -> bool:
    """Whether pages may move between the two."""
    return one == other or next(_differing(one, other), None) is None


def mismatch(one: Hello, other: Hello) -> str:
    """What differs so that the two cannot exchange pages, with both values; "": they can."""
    if one.layout == other.layout:
        return ""
    found = []
    for name, ours, theirs in _differing(one.layout, other.layout):
        setting = f" ({SETTINGS[name]})" if name in SETTINGS else ""
        found.append(f"{name} {ours} of {one.worker.name}, {theirs} of {other.worker.name}{setting}")
    return "; ".join(found)


def refused_pairs(hellos: Iterable[Hello]) -> tuple[RefusedPairs, ...]:
    """All pairs of a prefill and a decode worker of the same version that `mismatch` keeps apart, one entry for all
    workers of two layouts."""
    groups: dict[tuple[str, str, PageLayout], list[Hello]] = {}
    for hello in hellos:
        groups.setdefault((hello.model_version, hello.role, hello.layout), []).append(hello)
    found = []
    for (version, role, _), prefills in groups.items():
        for (other_version, other_role, _), decodes in groups.items():
            if role == "prefill" and other_role == "decode" and version == other_version:
                reason = mismatch(prefills[0], decodes[0])
                if reason:
                    found.append(RefusedPairs(_of(prefills), _of(decodes), reason))
    return tuple(found)


def drift(hellos: Iterable[Hello], router_version: str = "") -> tuple[str, ...]:
    """One sentence for each field of the builds in which workers of the same version of the model differ.
    `router_version` is the router's own version of Slipstream, which is compared with theirs."""
    versions: dict[str, list[Hello]] = {}
    for hello in hellos:
        versions.setdefault(hello.model_version, []).append(hello)
    found: dict[str, None] = {}
    for of_version in versions.values():
        protocols: dict[str, list[str]] = {str(PROTOCOL_VERSION): ["the router"]} if router_version else {}
        for hello in of_version:
            protocols.setdefault(str(hello.version), []).append(hello.worker.name)
        found |= _if_several("protocol", protocols)
        for field in fields(Build):
            values: dict[str, list[str]] = {}
            if field.name == "slipstream" and router_version:
                values[router_version] = ["the router"]
            for hello in of_version:
                value = getattr(hello.build, field.name)
                if value:
                    values.setdefault(value, []).append(hello.worker.name)
            found |= _if_several(field.name, values)
    return tuple(found)


def about_newcomer(hello: Hello, connected: Iterable[Hello]) -> Iterator[str]:
    """At most two sentences for the log about a worker that joins: with whom it exchanges no pages, and in what it
    differs from the others of its version."""
    same_version = [
        other for other in connected if other.model_version == hello.model_version and other.worker != hello.worker
    ]
    incompatible = [other for other in same_version if other.role != hello.role and mismatch(hello, other)]
    if incompatible:
        reason = mismatch(hello, incompatible[0])
        yield f"{hello.worker.name} exchanges no pages with {_names(_of(incompatible))}: {reason}"
    found = []
    for field in fields(Build):
        ours = getattr(hello.build, field.name)
        for other in same_version:
            theirs = getattr(other.build, field.name)
            if ours and theirs and ours != theirs:
                found.append(f"{field.name} {ours} ({theirs} on {other.worker.name})")
                break
    if found:
        yield f"{hello.worker.name} may compute otherwise than others: {', '.join(found)}"


def _if_several(what: str, values: dict[str, list[str]]) -> dict[str, None]:
    """A sentence where there are several values, each with the names of those that have it."""
    parts = [f"{value} on {_names(names)}" for value, names in sorted(values.items())]
    return {f"{what} is {' and '.join(parts)}": None} if len(parts) > 1 else {}


def _differing(one: PageLayout, other: PageLayout) -> Iterator[tuple[str, object, object]]:
    for field in fields(PageLayout):
        ours, theirs = getattr(one, field.name), getattr(other, field.name)
        if ours and theirs and ours != theirs:
            yield field.name, ours, theirs


def _of(hellos: Iterable[Hello]) -> tuple[str, ...]:
    return tuple(hello.worker.name for hello in hellos)


def _names(names: Iterable[str]) -> str:
    shown = sorted(names)
    more = f" and {len(shown) - MAX_NAMES} more" if len(shown) > MAX_NAMES else ""
    return ", ".join(shown[:MAX_NAMES]) + more
