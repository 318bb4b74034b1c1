"""Kubernetes' schemas for objects, and small ones for the custom resources that the chart makes."""

import json
from functools import cache
from typing import Any

import jsonschema
from kubernetes_validate.utils import all_versions, schema_contents
from referencing import Registry, Resource

VERSIONS = ("1.33", "1.35", "1.37")
"""The oldest that the chart takes, and newer ones."""

TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
TEXTS: dict[str, Any] = {"type": "array", "items": TEXT, "minItems": 1}
LABELS: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "string"}}
DURATION: dict[str, Any] = {"type": "string", "pattern": r"^([0-9]+(\.[0-9]+)?(h|m|s|ms))+$"}
LIFETIME: dict[str, Any] = {"type": "string", "pattern": r"^([0-9]+(h|m|s))+$"}


def _object(required: str = "", **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def _list(of: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": of, "minItems": 1}


_METADATA = _object(
    "name namespace labels", name=TEXT, namespace=TEXT, labels=LABELS, annotations=LABELS
)
_PARENT = _object(
    "name",
    group=TEXT,
    kind=TEXT,
    name=TEXT,
    namespace=TEXT,
    sectionName=TEXT,
    port={"type": "integer"},
)
_BACKEND = _object(
    "name port",
    group={"type": "string"},
    kind=TEXT,
    name=TEXT,
    namespace=TEXT,
    port={"type": "integer"},
    weight={"type": "integer"},
)
_METHOD = _object(type={"enum": ["Exact", "RegularExpression"]}, service=TEXT, method=TEXT)
_SELECTOR = _object(matchLabels=LABELS, matchExpressions={"type": "array"})


def _kind(api_version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return _object(
        "apiVersion kind metadata spec",
        apiVersion={"const": api_version},
        kind={"const": kind},
        metadata=_METADATA,
        spec=spec,
    )


def _route(kind: str, rule: dict[str, Any]) -> dict[str, Any]:
    return _kind(
        "gateway.networking.k8s.io/v1",
        kind,
        _object("parentRefs rules", parentRefs=_list(_PARENT), hostnames=TEXTS, rules=_list(rule)),
    )


_CUSTOM = {
    "HTTPRoute": _route(
        "HTTPRoute",
        _object(
            "backendRefs",
            name=TEXT,
            matches=_list(
                _object(
                    path=_object(
                        "type value",
                        type={"enum": ["Exact", "PathPrefix", "RegularExpression"]},
                        value={"type": "string", "pattern": "^/"},
                    )
                )
            ),
            backendRefs=_list(_BACKEND),
            timeouts=_object(request=DURATION, backendRequest=DURATION),
        ),
    ),
    "GRPCRoute": _route(
        "GRPCRoute",
        _object(
            "backendRefs",
            name=TEXT,
            matches=_list(_object(method=_METHOD)),
            backendRefs=_list(_BACKEND),
        ),
    ),
    "ServiceMonitor": _kind(
        "monitoring.coreos.com/v1",
        "ServiceMonitor",
        _object(
            "selector endpoints",
            selector=_SELECTOR,
            jobLabel=TEXT,
            targetLabels=TEXTS,
            podTargetLabels=TEXTS,
            namespaceSelector=_object(matchNames=TEXTS),
            scrapeProtocols=TEXTS,
            endpoints=_list(
                _object(
                    "port",
                    port=TEXT,
                    path={"type": "string", "pattern": "^/"},
                    scheme={"enum": ["http", "https", "HTTP", "HTTPS"]},
                    interval=DURATION,
                    scrapeTimeout=DURATION,
                    honorLabels={"type": "boolean"},
                    tlsConfig={"type": "object"},
                    relabelings={"type": "array"},
                    metricRelabelings={"type": "array"},
                )
            ),
        ),
    ),
    "PrometheusRule": _kind(
        "monitoring.coreos.com/v1",
        "PrometheusRule",
        _object(
            "groups",
            groups=_list(
                _object(
                    "name rules",
                    name=TEXT,
                    interval=DURATION,
                    rules=_list(
                        _object(
                            "alert expr annotations labels",
                            alert=TEXT,
                            expr=TEXT,
                            labels=LABELS,
                            annotations=LABELS,
                            **{"for": DURATION},
                        )
                    ),
                )
            ),
        ),
    ),
    "Certificate": _kind(
        "cert-manager.io/v1",
        "Certificate",
        _object(
            "secretName issuerRef dnsNames",
            secretName=TEXT,
            issuerRef=_object("name", name=TEXT, kind=TEXT, group=TEXT),
            commonName=TEXT,
            dnsNames=TEXTS,
            duration=LIFETIME,
            renewBefore=LIFETIME,
            usages={
                "type": "array",
                "items": {
                    "enum": ["server auth", "client auth", "digital signature", "key encipherment"]
                },
            },
            privateKey=_object(
                algorithm={"enum": ["RSA", "ECDSA", "Ed25519"]},
                size={"type": "integer"},
                encoding={"enum": ["PKCS1", "PKCS8"]},
                rotationPolicy={"enum": ["Never", "Always"]},
            ),
        ),
    ),
}


def check(value: dict[str, Any], version: str) -> None:
    """Raises jsonschema.ValidationError where a cluster of that version would not take it."""
    _check(json.dumps(value), version)


@cache
def _check(text: str, version: str) -> None:
    value = json.loads(text)
    custom = _CUSTOM.get(value["kind"])
    if custom is not None:
        jsonschema.Draft202012Validator(custom).validate(value)
    else:
        _validator(value["apiVersion"], value["kind"], version).validate(value)


@cache
def _definitions(version: str) -> Registry[Any]:
    resource = Resource.from_contents(_contents("_definitions", version))
    return (resource @ Registry()).crawl()


@cache
def _validator(api_version: str, kind: str, version: str) -> jsonschema.Draft202012Validator:
    group, _, number = api_version.rpartition("/")
    short = f"{group.partition('.')[0]}-{number}" if group else number
    schema = _contents(f"{kind.lower()}-{short}", version)
    registry = Resource.from_contents(schema) @ _definitions(version)
    return jsonschema.Draft202012Validator(schema, registry=registry)


def _contents(name: str, version: str) -> Any:
    (exact,) = {each for each in all_versions() if each.startswith(f"{version}.")}
    return schema_contents(f"kubernetes-json-schema/v{exact}-local-strict/{name}.json", version)
