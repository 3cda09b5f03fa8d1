# SPDX-License-Identifier: Apache-2.0
"""Reads an OTLP request with OpenTelemetry's official schema and prints what it says as JSON.

usage: check_otlp.py REQUEST RESPONSE

Fails on fields that the schema does not have, and on histograms whose buckets do not add up.
Writes a partial success to RESPONSE, as a collector would answer.
"""

import json
import sys

from google.protobuf.unknown_fields import UnknownFieldSet
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as service

TEMPORALITY = {1: "delta", 2: "cumulative"}


def check_known(message):
    """Every field has a name."""
    unknown = [field.field_number for field in UnknownFieldSet(message)]
    assert not unknown, f"{message.DESCRIPTOR.full_name} has unknown fields {unknown}"
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else [value]:
                check_known(inner)


def attributes(pairs):
    values = {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}
    assert len(values) == len(pairs), f"an attribute is there twice: {pairs}"
    return values


def number(point):
    kind = point.WhichOneof("value")
    return {"type": kind, "value": getattr(point, kind)}


def histogram(point):
    buckets = list(point.positive.bucket_counts)
    assert point.count == point.zero_count + sum(buckets), f"buckets do not add up: {point}"
    return {
        "count": point.count,
        "sum": point.sum,
        "scale": point.scale,
        "zero_count": point.zero_count,
        "offset": point.positive.offset,
        "buckets": buckets,
        "min": point.min,
        "max": point.max,
    }


def metric(message):
    kind = message.WhichOneof("data")
    data = getattr(message, kind)
    read = histogram if kind == "exponential_histogram" else number
    seen = {"name": message.name, "unit": message.unit, "description": message.description}
    seen["kind"] = kind
    if kind != "gauge":
        seen["temporality"] = TEMPORALITY[data.aggregation_temporality]
    if kind == "sum":
        assert data.is_monotonic, message.name
    seen["points"] = [
        {
            "attributes": attributes(point.attributes),
            "start": point.start_time_unix_nano,
            "time": point.time_unix_nano,
            **read(point),
        }
        for point in data.data_points
    ]
    return seen


def main(request_path, response_path):
    with open(request_path, "rb") as file:
        request = service.ExportMetricsServiceRequest.FromString(file.read())
    check_known(request)
    [resource] = request.resource_metrics
    [scope] = resource.scope_metrics
    seen = {
        "resource": attributes(resource.resource.attributes),
        "scope": [scope.scope.name, scope.scope.version],
        "metrics": [metric(message) for message in scope.metrics],
    }
    json.dump(seen, sys.stdout)
    partial = service.ExportMetricsPartialSuccess(rejected_data_points=7, error_message="too old")
    response = service.ExportMetricsServiceResponse(partial_success=partial)
    with open(response_path, "wb") as file:
        file.write(response.SerializeToString())


if __name__ == "__main__":
    main(*sys.argv[1:])
