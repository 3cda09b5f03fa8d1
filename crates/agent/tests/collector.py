# SPDX-License-Identifier: Apache-2.0
"""A collector made of gRPC's reference implementation and OpenTelemetry's own service definition.

usage: agent_collector.py FOLDER ANSWER...

Answers requests with ANSWER after ANSWER, the last again and again: OK, PARTIAL (points were
rejected), or a status code, where CODE+S asks to come again in S seconds. Speaks TLS if FOLDER has
cert.pem and key.pem, and then asks for a client's certificate that is in FOLDER/clients.pem, if that
is there. Prints its port; then, for each request, its metadata as JSON, and keeps the request as
FOLDER/request-N. Ends when its input does.
"""

import concurrent.futures
import json
import pathlib
import sys

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as service
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as rpc


def field(number, content):
    """A protobuf field of few bytes."""
    return bytes([number << 3 | 2, len(content)]) + content


def with_retry_info(seconds):
    """A `google.rpc.Status` with a `RetryInfo`, whose classes are in no package that is here."""
    delay = Duration()
    delay.FromMilliseconds(int(seconds * 1000))
    url = "type.googleapis.com/google.rpc.RetryInfo"
    info = Any(type_url=url, value=field(1, delay.SerializeToString()))
    return field(3, info.SerializeToString())


class Collector(rpc.MetricsServiceServicer):
    def __init__(self, folder, answers):
        self.folder, self.answers, self.count = folder, answers, 0

    def Export(self, request, context):
        answer = self.answers[min(self.count, len(self.answers) - 1)]
        self.count += 1
        with open(self.folder / f"request-{self.count}", "wb") as file:
            file.write(request.SerializeToString())
        seen = dict(context.invocation_metadata())
        seen["seconds_left"] = context.time_remaining()
        print(json.dumps(seen), flush=True)
        response = service.ExportMetricsServiceResponse()
        if answer == "PARTIAL":
            response.partial_success.rejected_data_points = 7
            response.partial_success.error_message = "too old"
        elif answer != "OK":
            code, _, pause = answer.partition("+")
            if pause:
                details = with_retry_info(float(pause))
                context.set_trailing_metadata([("grpc-status-details-bin", details)])
            context.set_code(getattr(grpc.StatusCode, code))
            context.set_details("not now")
        return response


def credentials(folder):
    chain = ((folder / "key.pem").read_bytes(), (folder / "cert.pem").read_bytes())
    clients = folder / "clients.pem"
    if not clients.exists():
        return grpc.ssl_server_credentials([chain])
    return grpc.ssl_server_credentials([chain], clients.read_bytes(), True)


def main(folder, *answers):
    folder = pathlib.Path(folder)
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(max_workers=1))
    rpc.add_MetricsServiceServicer_to_server(Collector(folder, answers), server)
    if (folder / "cert.pem").exists():
        port = server.add_secure_port("localhost:0", credentials(folder))
    else:
        port = server.add_insecure_port("localhost:0")
    server.start()
    print(port, flush=True)
    sys.stdin.read()
    server.stop(None).wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
