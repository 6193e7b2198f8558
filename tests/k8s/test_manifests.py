"""The Kubernetes manifests say what the APIs understand, and agree with each other and with the configuration."""

from __future__ import annotations

import copy
import os
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from slipstream.cluster.config.cluster_config import ClusterConfig
from slipstream.cluster.config.loading.config_file import load_config
from slipstream.cluster.ray.node_choice import matches
from tests.cluster.config.loading.test_config_file import write_model
from tests.support.k8s.api_schema import KINDS, custom_resource_schemas

FOLDER = Path(__file__).resolve().parents[2] / "configs" / "k8s"
KUSTOMIZATION = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())


def manifests() -> list[dict[str, Any]]:
    texts = [(FOLDER / name).read_text() for name in KUSTOMIZATION["resources"]]
    return [document for text in texts for document in yaml.safe_load_all(text)]


def patched() -> list[dict[str, Any]]:
    """With the patches of the kustomization, all of which replace."""
    documents = copy.deepcopy(manifests())
    for patch in KUSTOMIZATION["patches"]:
        [target] = [
            document
            for document in documents
            if (document["kind"], document["metadata"]["name"]) == (patch["target"]["kind"], patch["target"]["name"])
        ]
        for change in yaml.safe_load(patch["patch"]):
            assert change["op"] == "replace"
            *path, last = [int(key) if key.isdigit() else key for key in change["path"].strip("/").split("/")]
            place: Any = target
            for key in path:
                place = place[key]
            assert last in place or isinstance(last, int), change["path"]
            place[last] = change["value"]
    return documents


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [document for document in patched() if document["kind"] == kind]


def config(tmp_path: Path) -> ClusterConfig:
    """The configuration in the config map, with a model that is there."""
    text = (FOLDER / "config" / "slipstream.yaml").read_text()
    model = write_model(tmp_path / "model")
    path = tmp_path / "slipstream.yaml"
    path.write_text(re.sub(r"^  path: /models/.*$", f"  path: {model}", text, count=1, flags=re.MULTILINE))
    return load_config(path)


@pytest.mark.parametrize("document", patched(), ids=lambda d: f"{d['kind']}-{d['metadata']['name']}")
def test_every_manifest_keeps_to_its_api(document: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(KINDS[document["kind"]]).validate(document)


@pytest.mark.parametrize("document", patched(), ids=lambda d: f"{d['kind']}-{d['metadata']['name']}")
def test_every_custom_resource_keeps_to_its_whole_definition(document: dict[str, Any]) -> None:
    folder = os.environ.get("KUBERAY_CRDS")
    if folder is None:
        pytest.skip("KUBERAY_CRDS names no folder with the CRDs of KubeRay")
    if document["apiVersion"] != "ray.io/v1":
        pytest.skip("no custom resource")
    jsonschema.Draft202012Validator(custom_resource_schemas(Path(folder))[document["kind"]]).validate(document)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "workerGroupSpec"), []),
        (("spec", "headGroupSpec", "template", "spec", "containers", 0, "resources", "limits", "memory"), "8 GB"),
        (("spec", "workerGroupSpecs", 0, "minReplicas"), "none"),
        (("spec", "authOptions", "mode"), "yes"),
    ],
)
def test_a_mistake_in_a_manifest_is_noticed(path: tuple[str | int, ...], value: object) -> None:
    [document] = of_kind("RayCluster")
    place: Any = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(KINDS["RayCluster"]).validate(document)
    if (folder := os.environ.get("KUBERAY_CRDS")) is not None and value != "8 GB":
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft202012Validator(custom_resource_schemas(Path(folder))["RayCluster"]).validate(document)


def test_services_and_budgets_select_pods_that_there_are() -> None:
    [cluster] = of_kind("RayCluster")
    name = cluster["metadata"]["name"]
    # What KubeRay puts on its pods.
    pods = [{"ray.io/cluster": name, "ray.io/node-type": "head"}]
    pods += [
        {"ray.io/cluster": name, "ray.io/node-type": "worker", "ray.io/group": group["groupName"]}
        for group in cluster["spec"]["workerGroupSpecs"]
    ]
    budgets = of_kind("PodDisruptionBudget")
    selectors = [budget["spec"]["selector"]["matchLabels"] for budget in budgets]
    for selector in (*selectors, *(service["spec"]["selector"] for service in of_kind("Service"))):
        assert sum(selector.items() <= pod.items() for pod in pods) == 1, selector
    assert all(any(s.items() <= pod.items() for s in selectors) for pod in pods), "a pod without a budget"
    [job] = of_kind("RayJob")
    assert job["spec"]["clusterSelector"] == {"ray.io/cluster": name}


def test_ports_of_services_probes_and_configuration_are_the_same(tmp_path: Path) -> None:
    settings = config(tmp_path)
    [cluster] = of_kind("RayCluster")
    [head] = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"]
    declared = {port["name"]: port["containerPort"] for port in head["ports"]}
    assert declared["http"] == settings.router.http.port
    assert declared["admin"] == settings.router.admin.port
    assert declared["admin-api"] == settings.admin_api.port
    for service in of_kind("Service"):
        for port in service["spec"]["ports"]:
            assert port["targetPort"] == declared[port["name"]]
    assert f":{settings.router.http.port}/health/ready" in (FOLDER / "config" / "ready.py").read_text()


def test_each_pool_fits_in_the_pods_that_carry_its_label(tmp_path: Path) -> None:
    settings = config(tmp_path)
    [cluster] = of_kind("RayCluster")
    groups = cluster["spec"]["workerGroupSpecs"]
    for role, pool in settings.pools():
        [group] = [group for group in groups if matches(group["labels"], pool.labels)]
        assert group["groupName"] == role
        [container] = group["template"]["spec"]["containers"]
        gpus = int(container["resources"]["limits"]["nvidia.com/gpu"])
        assert pool.num_gpus is not None
        assert gpus == pool.tp * pool.num_gpus
        assert group["replicas"] == pool.replicas <= group["maxReplicas"]
        assert group["template"]["spec"]["terminationGracePeriodSeconds"] > settings.drain_timeout_s


def test_the_head_has_the_time_to_leave_its_balancers_and_to_drain(tmp_path: Path) -> None:
    settings = config(tmp_path)
    [cluster] = of_kind("RayCluster")
    pod = cluster["spec"]["headGroupSpec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > settings.drain_grace_s + settings.drain_timeout_s
    [container] = pod["containers"]
    assert "slipstream down --grace" in container["lifecycle"]["preStop"]["exec"]["command"][-1]
    probe = container["readinessProbe"]
    assert settings.drain_grace_s >= probe["periodSeconds"] * probe["failureThreshold"]


def test_the_job_serves_the_configuration_that_is_mounted() -> None:
    [cluster], [job] = of_kind("RayCluster"), of_kind("RayJob")
    pod = cluster["spec"]["headGroupSpec"]["template"]["spec"]
    [mount] = [m for m in pod["containers"][0]["volumeMounts"] if m["name"] == "config"]
    assert job["spec"]["entrypoint"].endswith(f" {mount['mountPath']}/slipstream.yaml")
    [made] = KUSTOMIZATION["configMapGenerator"]
    assert {"name": "config", "configMap": {"name": made["name"]}} in pod["volumes"]
    assert all((FOLDER / file).is_file() for file in made["files"])
