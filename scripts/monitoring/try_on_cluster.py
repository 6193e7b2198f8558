"""Scrapes a cluster that runs on this host, under some load, and evaluates all rules and all expressions of dashboards
with its data: `python scripts/monitoring/try_on_cluster.py NAME [--seconds 60] [--key KEY] [--client-key KEY]
[--ca-file FILE]`. It ends with 1 where an expression errs, has no data although it must, or where a scrape and the
reference do not agree."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

from scripts.monitoring.dashboards import DASHBOARDS  # noqa: E402
from scripts.monitoring.expressions import selectors  # noqa: E402
from scripts.monitoring.families import labels_by_sample  # noqa: E402
from scripts.monitoring.scraped import Prometheus, Target, prometheus  # noqa: E402
from scripts.monitoring.try_load import TryLoad, bearer  # noqa: E402
from slipstream.cluster.state import clusters_here, host_folders  # noqa: E402

MAY_BE_EMPTY = (  # counted from the first event on, or only with the hardware or setting that they are about
    "DCGM_",
    "nv_gpu_",
    "slipstream:api_keys",
    "slipstream:certificate_expiry_timestamp_seconds",
    "slipstream:migration_pause_seconds",
    "slipstream:migrations_total",
    "slipstream:planner_actions_total",
    "slipstream:rate_limited_total",
    "slipstream:rejections_total",
    "slipstream:retries_total",
    "slipstream:tenant_tokens_total",
    "slipstream:unauthenticated_total",
    "slipstream:worker_gpu_",
)
MIN_SECONDS = 15.0  # rates need some scrapes and evaluations
JOBS = {"router": "slipstream-router", "driver": "slipstream-driver"}


def main() -> int:
    asked = arguments()
    if asked.ca_file is not None:
        os.environ["SSL_CERT_FILE"] = str(asked.ca_file.resolve(strict=True))  # OpenSSL and Prometheus read it
    state = next((one for one in clusters_here.read_all(host_folders.run_folder()) if one.name == asked.name), None)
    if state is None:
        print(f"no cluster {asked.name!r} runs on this host", file=sys.stderr)
        return 1
    targets = {
        JOBS["router"]: Target(state.ask_url, asked.key),
        JOBS["driver"]: Target(state.operator_url, state.operator_token),
    }
    tensor_models = tuple(ready_tensor_models(state.url, asked.key))
    load = TryLoad(state.url, state.model, tensor_models, tuple(asked.client_key))
    with tempfile.TemporaryDirectory() as folder, prometheus(targets, Path(folder)) as scraping:
        load.start()
        try:
            time.sleep(max(asked.seconds, MIN_SECONDS))
            found = [*scrape_faults(scraping), *rule_faults(scraping), *panel_faults(scraping)]
        finally:
            load.end()
        found += [fault for job, target in targets.items() for fault in reference_faults(job, target)]
        if state.tensor_metrics_url:
            found += reference_faults("tensor", Target(state.tensor_metrics_url.removesuffix("/metrics")))
        print(f"load: {dict(sorted(load.counts.items()))}")
    print("\n".join(found) or "no faults")
    return 1 if found else 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="the cluster's")
    parser.add_argument("--seconds", type=float, default=60.0, help="of load, 15 at least")
    parser.add_argument("--key", default="", help="of an administrator, where the cluster has keys")
    parser.add_argument("--client-key", action="append", default=[], help="of a client; may be given several times")
    parser.add_argument("--ca-file", type=Path, help="authorities of the ports' certificates, where these have TLS")
    return parser.parse_args()


def ready_tensor_models(url: str, key: str) -> Iterator[str]:
    headers = {"Content-Type": "application/json", **bearer(key)}
    question = urllib.request.Request(f"{url}/v2/repository/index", b"{}", headers)
    try:
        with urllib.request.urlopen(question) as answer:
            yield from (one["name"] for one in json.load(answer) if one.get("state") == "READY")
    except OSError:
        return  # no repository


def scrape_faults(scraping: Prometheus) -> Iterator[str]:
    for target in scraping.targets():
        if target["health"] != "up":
            yield f"scrape of {target['labels']['job']}: {target['lastError'] or target['health']}"


def rule_faults(scraping: Prometheus) -> Iterator[str]:
    """A record has to have samples; an alert need not hold, but what it is about has to be there."""
    for rule in scraping.rules():
        name, expression = rule["name"], rule["query"]
        if rule["health"] != "ok":
            yield f"rule {name}: {rule.get('lastError') or rule['health']}"
        if rule["type"] == "recording":
            yield from value_faults(scraping, f"record {name}", name)
        for metric in sorted({one.metric for one in selectors(expression)}):
            if not metric.startswith(MAY_BE_EMPTY) and not scraping.query(f"count({metric})"):
                yield f"rule {name}: there is no {metric}"
        if rule["type"] == "alerting" and rule["state"] != "inactive":
            print(f"alert {name} is {rule['state']}: {[one['annotations']['summary'] for one in rule['alerts']]}")


def panel_faults(scraping: Prometheus) -> Iterator[str]:
    for dashboard in DASHBOARDS:
        for panel in dashboard.panels:
            for query in panel.queries:
                where = f"dashboard {dashboard.name}, panel {panel.title!r}, {query.legend!r}"
                yield from value_faults(scraping, where, filled(query.expression))
        for variable in dashboard.variables:
            expression = f"count by ({variable.label}) ({variable.metric})"
            yield from value_faults(scraping, f"dashboard {dashboard.name}, variable {variable.name}", expression)


def filled(expression: str) -> str:
    """As Grafana sends it, where all values of each variable are chosen."""
    for name in ("model", "worker", "tenant"):
        expression = expression.replace(f"${name}", ".*")
    return expression.replace("$__rate_interval", "1m")


def value_faults(scraping: Prometheus, where: str, expression: str) -> Iterator[str]:
    try:
        samples = scraping.query(expression)
    except ValueError as error:
        yield f"{where}: {error}"
        return
    values = [float(sample["value"][1]) for sample in samples]
    may_be_empty = any(one.metric.startswith(MAY_BE_EMPTY) for one in selectors(expression))
    if not values and not may_be_empty:
        yield f"{where}: no data of {expression}"
    if values and not may_be_empty and all(math.isnan(value) for value in values):
        yield f"{where}: only NaN of {expression}"


def reference_faults(job: str, target: Target) -> Iterator[str]:
    """Samples whose name or labels are not those of the reference."""
    labels_of = labels_by_sample()
    question = urllib.request.Request(f"{target.url}/metrics", headers=bearer(target.key))
    with urllib.request.urlopen(question) as answer:
        text = answer.read().decode()
    seen: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name if sample.name in text else sample.name.removesuffix("_total")  # which the parser adds
            seen.setdefault(name, set()).update(sample.labels)
    for name, labels in seen.items():
        if name not in labels_of:
            yield f"{job} has {name}, the reference has not"
        elif labels != labels_of[name]:
            yield f"{job} has {name} with {sorted(labels)}, the reference with {sorted(labels_of[name])}"


if __name__ == "__main__":
    sys.exit(main())
