"""Turns a recommendation into a configuration for `slipstream serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from slipstream.cluster.config.former_names import with_new_names
from slipstream.cluster.config.loading.config_file import load_config
from slipstream.cluster.config.settings_file import ConfigError
from slipstream.cluster.repository.outlines import Outlines
from slipstream.cluster.tools.plan.candidate import DeploymentCandidate
from slipstream.router.config.router_config import SloConfig
from slipstream.router.model_files.sources.weights_url import WeightsUrl


class PlanError(Exception):
    """There is no plan, or its file cannot be written. The text is one sentence that says why."""


def deployment(candidate: DeploymentCandidate, slo: SloConfig, base: dict[str, Any], has_gpus: bool) -> dict[str, Any]:
    """The settings of a deployment. `base` are those that stay: model, ports, and whatever else the user has set."""
    whole: dict[str, Any] = {key: value for key, value in base.items() if key not in ("prefill", "decode", "router")}
    profile = candidate.profile()
    replicas = {"prefill": candidate.split.num_prefill, "decode": candidate.split.num_decode}
    for role, count in replicas.items():
        part = profile.of("prefill" if role == "prefill" else "decode")
        pool = dict(base.get(role) or {})
        engine = dict(pool.get("engine") or {})
        engine |= {"max_step_tokens": part.max_step_tokens, "max_num_seqs": part.max_slots}
        pool |= {"replicas": count, "max_queued_tokens": part.max_queued_tokens, "engine": engine}
        devices = (candidate.prefill if role == "prefill" else candidate.decode).gpus
        pool["tp"] = max(devices, 1)
        if has_gpus:
            pool["num_gpus"] = 1
        whole[role] = pool
    router = dict(base.get("router") or {})
    dispatch = dict(router.get("dispatch") or {})
    dispatch |= {"policy": candidate.policy, "slo": {"ttft_ms": slo.ttft_ms, "itl_ms": slo.itl_ms}}
    whole["router"] = router | {"dispatch": dispatch}
    return whole


def base_of(config: Path | None, model: Path | None) -> dict[str, Any]:
    """The settings of the user's file, or nothing but the model. Paths are made absolute, because the new file may be
    in another folder. Raises PlanError."""
    if config is None:
        if model is None:
            raise PlanError("--write needs --config FILE or --model DIRECTORY: a deployment has a model")
        return {"model": {"path": str(model.resolve())}}
    try:
        with Outlines() as files:
            loaded = load_config(config, files=files)
        base = yaml.safe_load(config.read_text(encoding="utf-8"))
        named = base["model"]["path"]
        path = named if WeightsUrl.parse(named) is not None else loaded.model.path
    except ConfigError as error:
        raise PlanError("; ".join(map(str, error.problems))) from None
    except OSError as error:
        raise PlanError(f"{config}: {error.strerror}") from None
    return with_new_names(base) | {"model": dict(base["model"]) | {"path": str(path)}}


def write_deployment(path: Path, settings: dict[str, Any], heading: str) -> None:
    """Writes the file, and checks it as `slipstream check` does. Raises PlanError."""
    comment = "".join(f"# {line}\n" for line in heading.splitlines())
    try:
        path.write_text(comment + yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        with Outlines() as files:
            load_config(path, files=files)
    except OSError as error:
        raise PlanError(f"{path}: {error.strerror}") from None
    except ConfigError as error:
        raise PlanError("; ".join(map(str, error.problems))) from None
