"""What is said to gRPC before it is imported."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from slipstream.router.process.grpc_tuning import EXPERIMENTS, LISTEN_WITHOUT_EVENT_ENGINE, spare_grpc_threads


def test_what_the_operator_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EXPERIMENTS, "mine")
    spare_grpc_threads()
    assert os.environ[EXPERIMENTS] == "mine"
    monkeypatch.delenv(EXPERIMENTS)
    spare_grpc_threads()
    assert os.environ[EXPERIMENTS] == LISTEN_WITHOUT_EVENT_ENGINE


def test_a_router_without_a_repository_imports_neither_grpc_nor_protobuf() -> None:
    text = "import sys, slipstream.router.router, slipstream.router.main; print([*sys.modules])"
    modules = subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True).stdout
    assert "'grpc'" not in modules
    assert "'google.protobuf'" not in modules
    assert "'tritonclient'" not in modules
