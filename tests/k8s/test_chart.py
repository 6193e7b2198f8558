"""The chart renders what the APIs understand, which agrees with itself, the configuration and the plain manifests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.loading.config_file import load_config
from slipstream.router.tls.admin_tls import AdminTlsConfig
from slipstream.router.tls.link_tls import LinkTlsConfig
from tests.cluster.config.loading.test_config_file import write_model
from tests.support.k8s.chart_schema import CHART_KINDS
from tests.support.k8s.rendered_chart import CHART, VALUES, Manifest, of_kind, rendered, served_config, values_of

PLAIN = Path(__file__).resolve().parents[2] / "configs" / "k8s"
RULES = PLAIN.parent / "prometheus" / "rules.yaml"
EXAMPLES = [None, *sorted(path.stem for path in VALUES.glob("*.yaml"))]
HELM = pytest.importorskip("helm_python", reason="helm-python-sdk is not installed (pip install -e '.[charts]')")


@pytest.fixture(scope="module", params=EXAMPLES, ids=str)
def documents(request: pytest.FixtureRequest) -> list[Manifest]:
    return rendered(values_of(request.param))


def loaded(settings: dict[str, Any], folder: Path) -> ClusterConfig:
    """The configuration as `slipstream serve` reads it, with models and files that are there."""
    model = str(write_model(folder / "model"))
    for entry in [*settings.get("models", []), *([settings["model"]] if "model" in settings else [])]:
        entry["path"] = model
    for pool in (settings.get("prefill", {}), settings.get("decode", {})):
        pool["tp"] = min(pool.get("tp", 1), 2)  # the model has so many KV heads
    if "repository" in settings:
        (folder / "repository").mkdir()
        settings["repository"]["paths"] = [str(folder / "repository")]
    settings["router"]["http"].pop("tls", None)
    settings["router"].pop("access", None)
    token = folder / "token"
    token.write_text("t" * 48)
    settings["admin_api"]["token_file"] = str(token)
    (folder / "slipstream.yaml").write_text(yaml.safe_dump(settings))
    return load_config(folder / "slipstream.yaml")


def pods(documents: list[Manifest]) -> list[dict[str, Any]]:
    """The templates of all pods of a release."""
    found = [document["spec"]["template"] for document in of_kind(documents, "StatefulSet")]
    found += [one["spec"]["leaderWorkerTemplate"]["workerTemplate"] for one in of_kind(documents, "LeaderWorkerSet")]
    for cluster in of_kind(documents, "RayCluster"):
        found.append(cluster["spec"]["headGroupSpec"]["template"])
        found += [group["template"] for group in cluster["spec"]["workerGroupSpecs"]]
    return found


def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    found = HELM.lint(str(CHART))
    assert found["errors"] == []
    assert [message["error"] for message in found["messages"]] == ["icon is recommended"]


def test_every_manifest_keeps_to_its_api(documents: list[Manifest]) -> None:
    for document in documents:
        jsonschema.Draft202012Validator(CHART_KINDS[document["kind"]]).validate(document)
    names = [(document["kind"], document["metadata"]["name"]) for document in documents]
    assert len(set(names)) == len(names)


def test_the_configuration_is_one_that_slipstream_serves(documents: list[Manifest], tmp_path: Path) -> None:
    config = loaded(served_config(documents), tmp_path)
    [head] = [pod for pod in pods(documents) if pod["metadata"]["labels"]["app.kubernetes.io/component"] == "router"]
    ports = {port["name"]: port["containerPort"] for port in head["spec"]["containers"][0]["ports"]}
    assert (ports["http"], ports["admin"]) == (config.router.http.port, config.router.admin.port)
    assert ports["admin-api"] == config.admin_api.port
    if config.repository.is_on:
        assert (ports["grpc"], ports["triton-metrics"]) == (config.repository.grpc.port, config.repository.metrics.port)
    assert head["spec"]["terminationGracePeriodSeconds"] > config.drain_grace_s + config.drain_timeout_s


def test_each_pool_fits_in_its_pods(documents: list[Manifest]) -> None:
    config = served_config(documents)
    pools = config if "model" in config else config["models"][0]
    by_role = {pod["metadata"]["labels"]["app.kubernetes.io/component"]: pod for pod in pods(documents)}
    for role in ("prefill", "decode"):
        num_hosts = pools[role].get("hosts_per_group", 1)
        limits = by_role[role]["spec"]["containers"][0]["resources"]["limits"]
        assert int(limits["nvidia.com/gpu"]) == pools[role]["tp"] // num_hosts
        for group in of_kind(documents, "LeaderWorkerSet"):
            if group["metadata"]["name"].endswith(role):
                assert group["spec"]["leaderWorkerTemplate"]["size"] == num_hosts
        for cluster in of_kind(documents, "RayCluster"):
            [group] = [group for group in cluster["spec"]["workerGroupSpecs"] if group["groupName"] == role]
            assert group.get("numOfHosts", 1) == num_hosts


def test_selectors_find_pods_that_there_are(documents: list[Manifest]) -> None:
    labels = [pod["metadata"]["labels"] for pod in pods(documents)]
    for service in of_kind(documents, "Service"):
        assert sum(service["spec"]["selector"].items() <= one.items() for one in labels) == 1
    for budget in of_kind(documents, "PodDisruptionBudget"):
        assert sum(budget["spec"]["selector"]["matchLabels"].items() <= one.items() for one in labels) == 1
    [within, router] = of_kind(documents, "NetworkPolicy")
    assert all(within["spec"]["podSelector"]["matchLabels"].items() <= one.items() for one in labels)
    assert sum(router["spec"]["podSelector"]["matchLabels"].items() <= one.items() for one in labels) == 1
    open_ports = [rule["ports"] for rule in router["spec"]["ingress"] if "from" not in rule]
    assert {port["port"] for ports in open_ports for port in ports} <= {8000, 8003}


def test_prometheus_scrapes_router_and_driver_and_finds_the_runbooks() -> None:
    monitoring = {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True, "docsUrl": "https://docs/"}}
    documents = rendered({"monitoring": monitoring, "repository": {"enabled": True, "paths": ["/models"]}})
    [monitor] = of_kind(documents, "ServiceMonitor")
    jobs = {one["port"]: one["relabelings"][0]["replacement"] for one in monitor["spec"]["endpoints"]}
    assert jobs == {"admin": "slipstream-router", "admin-api": "slipstream-driver"}
    [admin] = [one for one in of_kind(documents, "Service") if one["metadata"]["name"].endswith("-admin")]
    assert {*jobs, "triton-metrics"} == {port["name"] for port in admin["spec"]["ports"]}
    [rule] = of_kind(documents, "PrometheusRule")
    alerts = [one for group in rule["spec"]["groups"] for one in group["rules"] if "alert" in one]
    assert all(
        one["annotations"]["runbook_url"] == f"https://docs/how-to/monitoring/#{one['alert'].lower()}" for one in alerts
    )


def test_the_admin_api_and_workers_use_tls_with_secrets_that_are_mounted() -> None:
    admin = {"secret": "admin-cert", "mutual": True}
    values = {"tls": {"adminApi": admin, "workers": {"secret": "link-cert", "serverName": "router.example"}}}
    documents = rendered({**values, "monitoring": {"serviceMonitor": {"enabled": True}}})
    settings = served_config(documents)
    tls, link = settings["admin_api"]["tls"], settings["router"]["worker_tls"]
    assert AdminTlsConfig(**tls).caller.cert_file == tls["cert_file"]
    assert (tls["server_name"], link["server_name"]) == ("demo-admin.prod.svc", "router.example")
    assert LinkTlsConfig(**link).mutual
    for pod in pods(documents):
        is_head = pod["metadata"]["labels"]["app.kubernetes.io/component"] == "router"
        paths = {mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]}
        secrets = {volume["secret"]["secretName"] for volume in pod["spec"]["volumes"] if "secret" in volume}
        for secret, file in (("link-cert", link["cert_file"]), *([("admin-cert", tls["cert_file"])] * is_head)):
            assert secret in secrets
            assert str(Path(file).parent) in paths
    [monitor] = of_kind(documents, "ServiceMonitor")
    jsonschema.Draft202012Validator(CHART_KINDS["ServiceMonitor"]).validate(monitor)
    [driver] = [one for one in monitor["spec"]["endpoints"] if one["port"] == "admin-api"]
    assert (driver["scheme"], driver["tlsConfig"]["serverName"]) == ("https", tls["server_name"])
    assert driver["tlsConfig"]["keySecret"] == {"name": "admin-cert", "key": "tls.key"}


def test_no_process_is_root_or_writes_to_its_image(documents: list[Manifest]) -> None:
    for pod in pods(documents):
        assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
        for container in pod["spec"]["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            mounts = {mount["name"] for mount in container["volumeMounts"]}
            assert mounts == {volume["name"] for volume in pod["spec"]["volumes"]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pools": {"prefill": {"tp": 3, "hostsPerGroup": 2}}}, "must divide tp, which is 3, got 2"),
        ({"models": []}, "models must have an entry"),
        ({"autoscaling": {"kind": "keda"}}, "need runtime leaderWorkerSet"),
        ({"drain": {"graceSeconds": 3}}, "graceSeconds must be at least"),
        ({"modells": []}, "modells"),
        ({"image": {"repositry": "x"}}, "repositry"),
    ],
)
def test_values_that_cannot_be_are_refused_with_the_reason(change: dict[str, Any], message: str) -> None:
    with pytest.raises(HELM.HelmError, match=message):
        rendered(change)


@pytest.mark.parametrize("kind", ["hpa", "keda"])
def test_pods_follow_the_number_of_groups_that_are_wanted(kind: str) -> None:
    documents = rendered({**values_of("groups-over-nodes"), "autoscaling": {"kind": kind}})
    found = of_kind(documents, "ScaledObject" if kind == "keda" else "HorizontalPodAutoscaler")
    sets = {one["metadata"]["name"]: one for one in of_kind(documents, "LeaderWorkerSet")}
    assert {one["spec"]["scaleTargetRef"]["name"] for one in found} == sets.keys()
    assert all("replicas" not in one["spec"] for one in sets.values())


def test_the_plain_manifests_say_the_same_as_the_chart_by_default() -> None:
    documents = rendered({})
    [ours] = of_kind(documents, "RayCluster")
    theirs = yaml.safe_load((PLAIN / "cluster.yaml").read_text())
    for key in ("rayVersion", "enableInTreeAutoscaling", "autoscalerOptions"):
        assert ours["spec"][key] == theirs["spec"][key]
    by_name = {group["groupName"]: group for group in ours["spec"]["workerGroupSpecs"]}
    for group in theirs["spec"]["workerGroupSpecs"]:
        other = by_name[group["groupName"]]
        assert other["labels"] == group["labels"]
        resources = [one["template"]["spec"]["containers"][0]["resources"] for one in (group, other)]
        assert resources[0] == resources[1]
        assert (other["replicas"], other["maxReplicas"]) == (group["replicas"], group["maxReplicas"])
    assert (CHART / "files" / "ready.py").read_text() == (PLAIN / "config" / "ready.py").read_text()
    assert (CHART / "files" / "rules.yaml").read_text() == RULES.read_text()
    plain = yaml.safe_load((PLAIN / "config" / "slipstream.yaml").read_text())
    served = served_config(documents)
    for key in ("prefill", "decode", "engine", "kv_transfer", "drain_grace_s", "drain_timeout_s", "startup_timeout_s"):
        expected = {"tp": 1, **plain[key]} if key in ("prefill", "decode") else plain[key]
        assert served[key] == expected, key
