"""What an operator is told about the models of a cluster that has only a repository."""

from __future__ import annotations

from typing import Any, cast

import pytest

from slipstream.cluster.admin_api.driver_parts import one_model
from slipstream.cluster.fleet.fleet_port import FleetError
from slipstream.cluster.update.updaters import Updaters


class NoModels:
    models = ()


def test_there_is_none_to_be_scaled_or_updated() -> None:
    with pytest.raises(FleetError, match="serves only a model repository"):
        Updaters().of(None)
    with pytest.raises(FleetError, match="serves only a model repository"):
        one_model(cast(Any, NoModels()), None)
