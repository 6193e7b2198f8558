"""What the manifests may say: the part of the Kubernetes and KubeRay APIs that they use, as strict JSON schemas.

A misspelt or misplaced field is an error here, as it is not on a server, which drops it without a word. Written after
the API references of Kubernetes 1.33 and KubeRay 1.5. `custom_resource_schemas` makes such schemas of whole CRD files
instead, of a checkout of KubeRay (helm-chart/kuberay-operator/crds), with which the tests check the manifests, too,
where KUBERAY_CRDS names that folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

Schema = dict[str, Any]

STRING: Schema = {"type": "string", "minLength": 1}
NAME: Schema = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"}
BOOL: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": 0}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
PORT_OR_NAME: Schema = {"anyOf": [PORT, NAME]}
QUANTITY: Schema = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$"}
STRINGS: Schema = {"type": "object", "additionalProperties": {"type": "string"}}


def fields(*required: str, **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def many(item: Schema) -> Schema:
    return {"type": "array", "items": item, "minItems": 1}


QUANTITIES: Schema = {"type": "object", "additionalProperties": QUANTITY}
METADATA = fields("name", name=NAME, labels=STRINGS, annotations=STRINGS)
KEY_SELECTOR = fields("name", "key", name=NAME, key=STRING)
FREE: Schema = {"type": "object"}  # the user's own, taken over as it is
SELECTOR = fields("matchLabels", matchLabels=STRINGS)
PROBE = {
    **fields(
        exec=fields("command", command=many(STRING)),
        httpGet=fields("port", path=STRING, port=PORT_OR_NAME, scheme={"enum": ["HTTP", "HTTPS"]}),
        **dict.fromkeys(("initialDelaySeconds", "periodSeconds", "timeoutSeconds", "failureThreshold"), COUNT),
    ),
    "oneOf": [{"required": ["exec"]}, {"required": ["httpGet"]}],
}
CONTAINER = fields(
    "name",
    "image",
    "resources",
    name=NAME,
    image=STRING,
    ports=many(fields("containerPort", name={"type": "string", "maxLength": 15}, containerPort=PORT)),
    imagePullPolicy={"enum": ["Always", "IfNotPresent", "Never"]},
    command=many(STRING),
    args=many(STRING),
    env=many(
        {
            **fields(
                "name",
                name=STRING,
                value=STRING,
                valueFrom=fields(secretKeyRef=KEY_SELECTOR, fieldRef=fields("fieldPath", fieldPath=STRING)),
            ),
            "oneOf": [{"required": ["value"]}, {"required": ["valueFrom"]}],
        }
    ),
    envFrom=many(fields("secretRef", secretRef=fields("name", name=NAME))),
    securityContext=fields(
        allowPrivilegeEscalation=BOOL, readOnlyRootFilesystem=BOOL, capabilities=fields("drop", drop=many(STRING))
    ),
    startupProbe=PROBE,
    resources=fields("requests", "limits", requests=QUANTITIES, limits=QUANTITIES),
    readinessProbe=PROBE,
    livenessProbe=PROBE,
    lifecycle=fields(preStop=fields("exec", exec=fields("command", command=many(STRING)))),
    volumeMounts=many(fields("name", "mountPath", name=NAME, mountPath=STRING, readOnly=BOOL)),
)
VOLUME = {
    **fields(
        "name",
        name=NAME,
        persistentVolumeClaim=fields("claimName", claimName=NAME, readOnly=BOOL),
        configMap=fields("name", name=NAME),
        secret=fields("secretName", secretName=NAME, items=many(fields("key", "path", key=STRING, path=STRING))),
        hostPath=fields("path", path=STRING, type=STRING),
        emptyDir=fields(medium={"enum": ["", "Memory"]}, sizeLimit=QUANTITY),
    ),
    "minProperties": 2,
    "maxProperties": 2,
}
SPREAD = fields(
    "maxSkew",
    "topologyKey",
    "whenUnsatisfiable",
    maxSkew={"type": "integer", "minimum": 1},
    topologyKey=STRING,
    whenUnsatisfiable={"enum": ["DoNotSchedule", "ScheduleAnyway"]},
    labelSelector=SELECTOR,
)
POD = fields(
    "containers",
    containers=many(CONTAINER),
    volumes=many(VOLUME),
    terminationGracePeriodSeconds=COUNT,
    serviceAccountName=NAME,
    automountServiceAccountToken=BOOL,
    imagePullSecrets=many(fields("name", name=NAME)),
    nodeSelector=STRINGS,
    tolerations=many(FREE),
    affinity=FREE,
    restartPolicy={"enum": ["Always", "Never", "OnFailure"]},
    securityContext=fields(
        runAsNonRoot=BOOL,
        runAsUser=COUNT,
        runAsGroup=COUNT,
        fsGroup=COUNT,
        seccompProfile=fields("type", type={"enum": ["RuntimeDefault", "Unconfined", "Localhost"]}),
    ),
    topologySpreadConstraints=many(SPREAD),
)
TEMPLATE = fields("spec", metadata=fields(labels=STRINGS, annotations=STRINGS), spec=POD)

RAY_CLUSTER = fields(
    "headGroupSpec",
    rayVersion=STRING,
    authOptions=fields(mode={"enum": ["disabled", "token"]}, secretName=NAME),
    enableInTreeAutoscaling=BOOL,
    autoscalerOptions=fields(
        version={"enum": ["v1", "v2"]},
        idleTimeoutSeconds=COUNT,
        resources=fields(requests=QUANTITIES, limits=QUANTITIES),
    ),
    headGroupSpec=fields("template", rayStartParams=STRINGS, template=TEMPLATE),
    workerGroupSpecs=many(
        fields(
            *("groupName", "minReplicas", "maxReplicas", "template"),
            groupName=NAME,
            replicas=COUNT,
            minReplicas=COUNT,
            maxReplicas=COUNT,
            numOfHosts={"type": "integer", "minimum": 1},
            rayStartParams=STRINGS,
            labels=STRINGS,
            template=TEMPLATE,
        )
    ),
)
RAY_JOB = fields(
    *("entrypoint", "clusterSelector"),
    entrypoint=STRING,
    clusterSelector=STRINGS,
    submissionMode={"enum": ["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"]},
    submitterConfig=fields(backoffLimit=COUNT),
)
SERVICE = fields(
    *("selector", "ports"),
    selector=STRINGS,
    type={"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    clusterIP={"const": "None"},
    ports=many(fields("name", "port", name=NAME, port=PORT, targetPort=PORT_OR_NAME, appProtocol=STRING)),
    publishNotReadyAddresses=BOOL,
)
BUDGET = fields("selector", maxUnavailable=COUNT, minAvailable=COUNT, selector=SELECTOR)


def kind_of(api_version: str, kind: str, spec: Schema) -> Schema:
    return fields(
        *("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": api_version},
        kind={"const": kind},
        metadata=METADATA,
        spec=spec,
    )


KINDS: dict[str, Schema] = {
    "RayCluster": kind_of("ray.io/v1", "RayCluster", RAY_CLUSTER),
    "RayJob": kind_of("ray.io/v1", "RayJob", RAY_JOB),
    "Service": kind_of("v1", "Service", SERVICE),
    "PodDisruptionBudget": kind_of("policy/v1", "PodDisruptionBudget", BUDGET),
}


def custom_resource_schemas(folder: Path) -> dict[str, Schema]:
    """By kind, of the CRD files in a folder: what their stored version says, and no field more."""
    found: dict[str, Schema] = {}
    for path in sorted(folder.glob("ray.io_ray*.yaml")):
        definition = yaml.load(path.read_text(), yaml.CSafeLoader)["spec"]
        version = next(version for version in definition["versions"] if version["storage"])
        found[definition["names"]["kind"]] = _strict(version["schema"]["openAPIV3Schema"])
    return found


def _strict(schema: Any) -> Any:
    """OpenAPI as Kubernetes uses it to JSON Schema; fields that are not named are wrong unless they are to be kept."""
    if isinstance(schema, list):
        return [_strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    strict = {key: _strict(value) for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        return {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    is_kind_of_all = "apiVersion" in schema.get("properties", {})  # its metadata is the server's
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        strict.setdefault("additionalProperties", is_kind_of_all)
    if schema == {"type": "object"}:
        strict["additionalProperties"] = True
    return strict
