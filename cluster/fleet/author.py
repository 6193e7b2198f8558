"""Who asked for a change of the cluster, and why."""

from __future__ import annotations

from typing import NamedTuple


class Author(NamedTuple):
    """`name` is that of an operator's token, or of the part of the cluster that decided it. `reason` is what the
    operator gave as `--reason`, or "" if nothing was given."""

    name: str
    reason: str = ""


OPERATOR = Author("operator")  # the token of the state file, or of admin_api.token_file
DRIVER = Author("driver")
WATCH = Author("watch")  # of a model's folder, for new versions
REPOSITORY = Author("repository", "a model of the repository needs it")
