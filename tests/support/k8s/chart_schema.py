"""What the chart may render beyond the plain manifests, as strict JSON schemas: further kinds of Kubernetes, and those
of LeaderWorkerSet 0.7, KEDA 2.17, Gateway API 1.3 and the operator of Prometheus, after their API references."""

from __future__ import annotations

from tests.support.k8s.api_schema import (
    BOOL,
    COUNT,
    KEY_SELECTOR,
    KINDS,
    METADATA,
    NAME,
    POD,
    PORT,
    SELECTOR,
    STRING,
    STRINGS,
    TEMPLATE,
    Schema,
    fields,
    kind_of,
    many,
)

LABEL_SELECTOR = fields(
    matchLabels=STRINGS,
    matchExpressions=many(
        fields("key", "operator", key=STRING, operator={"enum": ["In", "NotIn", "Exists", "DoesNotExist"]})
    ),
)
PEERS = many(fields(namespaceSelector=LABEL_SELECTOR, podSelector=LABEL_SELECTOR))
NETWORK_POLICY = fields(
    *("podSelector", "policyTypes", "ingress"),
    podSelector=LABEL_SELECTOR,
    policyTypes=many({"enum": ["Ingress", "Egress"]}),
    ingress=many(fields(ports=many(fields("protocol", "port", protocol=STRING, port=PORT)), **{"from": PEERS})),
)
STATEFUL_SET = fields(
    *("serviceName", "selector", "template"),
    serviceName=NAME,
    replicas=COUNT,
    selector=SELECTOR,
    template=TEMPLATE,
)
LEADER_WORKER_SET = fields(
    "leaderWorkerTemplate",
    replicas=COUNT,
    startupPolicy={"enum": ["LeaderCreated", "LeaderReady"]},
    rolloutStrategy=fields(
        "type",
        type={"const": "RollingUpdate"},
        rollingUpdateConfiguration=fields(maxUnavailable=COUNT, maxSurge=COUNT),
    ),
    leaderWorkerTemplate=fields(
        "workerTemplate",
        size={"type": "integer", "minimum": 1},
        restartPolicy={"enum": ["RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"]},
        workerTemplate=TEMPLATE,
    ),
)
TARGET = fields("kind", "name", apiVersion=STRING, kind=STRING, name=NAME)
SCALED_OBJECT = fields(
    *("scaleTargetRef", "triggers"),
    scaleTargetRef=TARGET,
    minReplicaCount=COUNT,
    maxReplicaCount=COUNT,
    pollingInterval=COUNT,
    cooldownPeriod=COUNT,
    triggers=many(
        fields(
            *("type", "metadata"),
            type={"const": "prometheus"},
            metricType={"enum": ["AverageValue", "Value"]},
            metadata=fields(
                *("serverAddress", "query", "threshold"),
                serverAddress=STRING,
                query=STRING,
                threshold=STRING,
                ignoreNullValues={"enum": ["true", "false"]},
            ),
        )
    ),
)
POD_AUTOSCALER = fields(
    *("scaleTargetRef", "maxReplicas"),
    scaleTargetRef=TARGET,
    minReplicas={"type": "integer", "minimum": 1},
    maxReplicas={"type": "integer", "minimum": 1},
    behavior=fields(scaleDown=fields(stabilizationWindowSeconds={"type": "integer", "minimum": 0, "maximum": 3600})),
    metrics=many(
        fields(
            *("type", "external"),
            type={"const": "External"},
            external=fields(
                *("metric", "target"),
                metric=fields("name", name=STRING, selector=SELECTOR),
                target=fields("type", type={"enum": ["AverageValue", "Value"]}, averageValue=STRING),
            ),
        )
    ),
)
SERVICE_MONITOR = fields(
    *("selector", "endpoints"),
    selector=SELECTOR,
    endpoints=many(
        fields(
            *("port",),
            port=NAME,
            path=STRING,
            interval=STRING,
            relabelings=many(fields(*("targetLabel", "replacement"), targetLabel=STRING, replacement=STRING)),
            authorization=fields("credentials", type=STRING, credentials=KEY_SELECTOR),
            scheme=STRING,
            tlsConfig=fields(
                serverName=STRING,
                ca=fields("secret", secret=KEY_SELECTOR),
                cert=fields("secret", secret=KEY_SELECTOR),
                keySecret=KEY_SELECTOR,
            ),
        )
    ),
)
PROMETHEUS_RULE = fields(
    "groups",
    groups=many(
        fields(
            *("name", "rules"),
            name=STRING,
            interval=STRING,
            rules=many(
                {
                    **fields(
                        "expr",
                        **{"for": STRING},
                        alert=STRING,
                        record=STRING,
                        expr=STRING,
                        labels=STRINGS,
                        annotations=STRINGS,
                    ),
                    "oneOf": [{"required": ["alert"]}, {"required": ["record"]}],
                }
            ),
        )
    ),
)
PARENTS = many(fields("name", name=NAME, namespace=NAME, sectionName=NAME, port=PORT))
BACKENDS = many(fields("name", "port", name=NAME, port=PORT, weight=COUNT))
HEADERS = many(fields("name", "value", name=STRING, value=STRING, type={"enum": ["Exact", "RegularExpression"]}))
DURATION: Schema = {"type": "string", "pattern": "^([0-9]{1,5}(h|m|s|ms)){1,4}$"}
HTTP_ROUTE = fields(
    *("parentRefs", "rules"),
    parentRefs=PARENTS,
    hostnames=many(STRING),
    rules=many(
        fields(
            "backendRefs",
            matches=many(fields(path=fields("type", "value", type=STRING, value=STRING), headers=HEADERS)),
            timeouts=fields(request=DURATION, backendRequest=DURATION),
            backendRefs=BACKENDS,
        )
    ),
)
GRPC_ROUTE = fields(
    *("parentRefs", "rules"),
    parentRefs=PARENTS,
    hostnames=many(STRING),
    rules=many(
        fields(
            "backendRefs",
            matches=many(fields(method=fields(service=STRING, method=STRING), headers=HEADERS)),
            backendRefs=BACKENDS,
        )
    ),
)
INGRESS = fields(
    "rules",
    ingressClassName=NAME,
    tls=many(fields(hosts=many(STRING), secretName=NAME)),
    rules=many(
        fields(
            *("host", "http"),
            host=STRING,
            http=fields(
                "paths",
                paths=many(
                    fields(
                        *("path", "pathType", "backend"),
                        path=STRING,
                        pathType={"enum": ["Prefix", "Exact", "ImplementationSpecific"]},
                        backend=fields("service", service=fields("name", "port", name=NAME, port=fields(name=NAME))),
                    )
                ),
            ),
        )
    ),
)


def _plain(api_version: str, kind: str, **properties: Schema) -> Schema:
    """A kind without a spec."""
    return fields(
        *("apiVersion", "kind", "metadata"),
        apiVersion={"const": api_version},
        kind={"const": kind},
        metadata=METADATA,
        **properties,
    )


CHART_KINDS: dict[str, Schema] = {
    **KINDS,
    "ConfigMap": _plain("v1", "ConfigMap", data=STRINGS),
    "Secret": _plain("v1", "Secret", type=STRING, stringData=STRINGS),
    "ServiceAccount": _plain("v1", "ServiceAccount", automountServiceAccountToken=BOOL),
    "Pod": kind_of("v1", "Pod", POD),
    "StatefulSet": kind_of("apps/v1", "StatefulSet", STATEFUL_SET),
    "NetworkPolicy": kind_of("networking.k8s.io/v1", "NetworkPolicy", NETWORK_POLICY),
    "Ingress": kind_of("networking.k8s.io/v1", "Ingress", INGRESS),
    "HorizontalPodAutoscaler": kind_of("autoscaling/v2", "HorizontalPodAutoscaler", POD_AUTOSCALER),
    "LeaderWorkerSet": kind_of("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", LEADER_WORKER_SET),
    "ScaledObject": kind_of("keda.sh/v1alpha1", "ScaledObject", SCALED_OBJECT),
    "ServiceMonitor": kind_of("monitoring.coreos.com/v1", "ServiceMonitor", SERVICE_MONITOR),
    "PrometheusRule": kind_of("monitoring.coreos.com/v1", "PrometheusRule", PROMETHEUS_RULE),
    "HTTPRoute": kind_of("gateway.networking.k8s.io/v1", "HTTPRoute", HTTP_ROUTE),
    "GRPCRoute": kind_of("gateway.networking.k8s.io/v1", "GRPCRoute", GRPC_ROUTE),
}
