"""Where the code is that a model's directory has for itself: only modules in the directory are run."""

from __future__ import annotations

import re
from collections.abc import Iterator

from slipstream.workers.models.directory.json_keys import Keys

AUTO_MAP = "auto_map"
AUTO_CLASSES = ("AutoConfig", "AutoModelForCausalLM")  # those of `auto_map` that are used
REFERENCE = re.compile(r"([A-Za-z_][\w-]*)\.([A-Za-z_]\w*)")  # a module in the directory, a class in it


def check_own_code(keys: Keys) -> None:
    """Raises ModelError if a class of `auto_map` is of another repository, or of a module that is not in the directory
    of config.json. (transformers would fetch code of another repository from the hub.)"""
    for key, value in _references(keys):
        if isinstance(value, str) and "--" in value:
            repository = value.partition("--")[0]
            raise keys.error(
                key, f"{value!r} is code of another repository, {repository!r}; only code in the directory is run"
            )
        found = REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if found is None:
            raise keys.error(
                key, f"must name a module of the directory and a class, as in 'module.Class', got {value!r}"
            )
        path = keys.path.parent / f"{found[1]}.py"
        if not path.is_file():
            raise keys.error(key, f"{value!r}: there is no {path}")


def _references(keys: Keys) -> Iterator[tuple[str, object]]:
    own = keys.get(AUTO_MAP)
    if not isinstance(own, dict):
        if own is not None:
            yield AUTO_MAP, own
        return
    for name in AUTO_CLASSES:
        if name in own:
            yield f"{AUTO_MAP}.{name}", own[name]
