"""What to do next for one language model that a repository names. Pure.

wanted   pools                      next
yes      none                       add them
yes      an operator's              wait until they serve
yes      the repository's, as asked wait until they serve
yes      the repository's, other    exchange them: the old ones serve until the new ones do
no       the repository's           remove them, once it is known what is wanted
no       an operator's, or none     nothing
any      leaving                    wait until they are gone
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum

from slipstream.router.status.wanted_models import WantedModel


class PoolStep(Enum):
    NOTHING = "nothing"
    ADD = "add"
    AWAIT = "await"
    EXCHANGE = "exchange"
    REMOVE = "remove"
    AWAIT_END = "await the end"


@dataclass(frozen=True, slots=True)
class ServedPools:
    """Those of a model that the cluster has. `asked` is what the repository wanted when they were started (`asked_as`);
    empty: an operator's."""

    asked: str
    is_leaving: bool = False


def asked_as(model: WantedModel) -> str:
    """What is wanted, as text: the next driver compares it. Aliases come and go without new workers."""
    settings = {key: value for key, value in model.settings.items() if key != "aliases"}
    return json.dumps([model.name, model.path, settings], sort_keys=True)


def next_step(wanted: WantedModel | None, pools: ServedPools | None, *, is_complete: bool) -> PoolStep:
    """`is_complete`: the router has tried all models of its start, so that what it does not want now is not wanted."""
    if pools is not None and pools.is_leaving:
        return PoolStep.AWAIT_END
    if wanted is None:
        is_left = pools is not None and pools.asked != "" and is_complete
        return PoolStep.REMOVE if is_left else PoolStep.NOTHING
    if pools is None:
        return PoolStep.ADD
    return PoolStep.AWAIT if pools.asked in ("", asked_as(wanted)) else PoolStep.EXCHANGE
