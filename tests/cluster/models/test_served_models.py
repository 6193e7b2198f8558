"""The configuration as it is served, while models come, go and change."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.model_entry import ModelEntry, ServedModelConfig
from slipstream.cluster.config.pool_config import PoolConfig
from slipstream.cluster.config.served_config import from_plain
from slipstream.cluster.models.served_models import ServedModels
from slipstream.cluster.state.cluster_state import ClusterState
from slipstream.router.config.router_config import SloConfig

ONE = ClusterConfig(ServedModelConfig("/m", "chat"), prefill=PoolConfig(replicas=3))
DRAFT = ModelEntry("/d", "draft", weight=2.0, slo=SloConfig(ttft_ms=50))


def served(config: ClusterConfig = ONE) -> tuple[ServedModels, ClusterState]:
    state = ClusterState("c", 1, 2.0, "/c.yaml", "chat")
    return ServedModels(config, state), state


def test_the_next_driver_gets_the_models_that_were_added() -> None:
    models, state = served()
    models.add(DRAFT)
    config = from_plain(state.served)
    assert config is not None
    assert [entry.name for entry in config.entries()] == ["chat", "draft"]
    assert config.of_model("chat").prefill.replicas == 3
    assert config.of_model("draft").router.dispatch.slo.ttft_ms == 50


def test_a_model_that_is_alone_again_has_the_form_with_which_it_began() -> None:
    models, _ = served()
    models.add(DRAFT)
    models.remove("draft")
    assert models.config == ONE
    models, _ = served(ONE.with_models([*ONE.entries(), DRAFT]))
    models.remove("chat")
    assert [entry.name for entry in models.config.models] == ["draft"]


def test_an_update_changes_one_entry_and_leaves_its_share_of_the_budget() -> None:
    models, _ = served()
    models.add(DRAFT)
    alone = models.config.of_model("draft")
    models.update("draft", replace(alone, model=replace(alone.model, path="/d/2", version="2")))
    entry = models.entry("draft")
    assert (entry.path, entry.version, entry.weight, entry.slo) == ("/d/2", "2", 2.0, DRAFT.slo)
    assert models.config.of_model("chat") == replace(ONE, models=())


def test_a_name_is_not_given_twice() -> None:
    models, _ = served()
    models.add(DRAFT)
    models.set_aliases("draft", ("d", "mini"))
    assert models.entry("draft").aliases == ("d", "mini")
    with pytest.raises(ValueError, match=r"must differ from the names of models\.0, got 'mini'"):
        models.set_aliases("chat", ("mini",))
