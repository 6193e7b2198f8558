"""The shares of the budget that a model could have, and what each would be worth: what `division` chooses from."""

from __future__ import annotations

from slipstream.cluster.planner.instances.instance_claims import InstanceClaims
from slipstream.cluster.planner.shared.division import ShareOption
from slipstream.cluster.planner.shared.model_view import ModelView


def worker_options(view: ModelView, max_workers: int) -> list[ShareOption]:
    """What the model would make of each number of workers, up to the first that is enough."""
    share, least = view.share, view.share.min_workers
    options = []
    for number in range(min(least, max_workers), max_workers + 1):
        served = view.served(number) if number else float(view.is_idle)
        if view.is_waking:  # what more would do is not known until the first is there
            served = float(number > 0)
        pools = view.best_split(number)
        size = view.planner.prices.size(pools)
        value = share.weight * served
        options.append(ShareOption(number, share.num_gpus(pools), value, size, share.num_cpus(pools)))
        if served >= 1.0:
            break
    return options


def instance_options(claims: InstanceClaims, name: str) -> list[ShareOption]:
    """What a version of a tensor model would make of each number of instances, up to the first that is enough."""
    share = claims.planners[name].share
    return [
        ShareOption(0, share.num_gpus(count), claims.value(name, count), 0.0, share.num_cpus(count), count)
        for count in claims.choices(name)
    ]
