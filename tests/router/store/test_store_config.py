"""Settings of the store and of batches, and where a cluster keeps its store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slipstream.cluster.supervisor.members.router_settings import with_store
from slipstream.router.config.background_config import BackgroundConfig
from slipstream.router.config.batches_config import BatchesConfig
from slipstream.router.config.router_config import RouterConfig
from slipstream.router.config.store_config import GIB, StoreConfig


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"directory": ""}, "directory must not be empty"),
        ({"max_gib": 0}, "max_gib must be over 0"),
        ({"max_age_s": float("inf")}, "max_age_s must be over 0 and finite, got inf"),
        ({"max_gib": 2, "max_tenant_gib": 3}, r"at most max_gib \(2\), got 3"),
    ],
)
def test_a_bad_setting_is_refused_with_its_name_and_value(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        StoreConfig(**settings)


def test_a_bad_setting_of_batches_is_refused_with_its_name_and_value() -> None:
    with pytest.raises(ValueError, match="max_running must be at least 1, got 0"):
        BatchesConfig(max_running=0)
    with pytest.raises(ValueError, match="max_tenant_unfinished must be at least 1, got 0"):
        BackgroundConfig(max_tenant_unfinished=0)
    with pytest.raises(ValueError, match="max_running_lines must be at most 4096, got 5000"):
        BatchesConfig(max_running_lines=5000)


def test_a_tenant_may_have_half_of_the_store_unless_there_are_no_keys() -> None:
    assert StoreConfig(max_gib=4).max_bytes_of("tenant") == 2 * GIB
    assert StoreConfig(max_gib=4).max_bytes_of("") == 4 * GIB
    assert StoreConfig(max_gib=4, max_tenant_gib=1).max_bytes_of("") == GIB


def test_the_store_of_a_cluster_is_in_its_state_folder_unless_another_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert with_store(RouterConfig(), "prod").store.directory == str(tmp_path / "slipstream/store/prod")
    own = RouterConfig(store=StoreConfig(directory="/elsewhere"))
    assert with_store(own, "prod") == own
