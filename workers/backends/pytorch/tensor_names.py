"""Which input or output of a program a name of the configuration means."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream.workers.backends.backend import BackendError


def places_of(names: Sequence[str], known: Sequence[Sequence[str]]) -> dict[str, int]:
    """The place of each of the configuration's `names`. `known` has the names that the program itself has for its
    places. All names follow the same rule: the first that fits all of them.

        the program has them       `mask`, `ARGS[0]`, `RESULT[logits]`
        NAME__<index>              `INPUT__0`
        any others                 in the order of the configuration
    """
    by_name = {name: place for place, own in enumerate(known) for name in own}
    if names and all(name in by_name for name in names):
        return {name: by_name[name] for name in names}
    indices = [index_in(name) for name in names]
    if all(index is not None for index in indices):
        return {name: index for name, index in zip(names, indices, strict=True) if index is not None}
    return {name: place for place, name in enumerate(names)}


def index_in(name: str) -> int | None:
    """Of a name like `INPUT__0`."""
    _, mark, index = name.partition("__")
    return int(index) if mark and index.isdecimal() else None


def check_outputs(places: dict[str, int], num_outputs: int) -> None:
    """Raises BackendError."""
    for name, place in places.items():
        if place >= num_outputs:
            text = (
                f"The output {name} in the model configuration refers to an output index which doesn't exist. This "
                f"model has {num_outputs} outputs"
            )
            raise BackendError(text, "INVALID_ARG")
