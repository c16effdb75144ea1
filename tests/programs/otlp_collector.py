"""A collector of traces: decodes OTLP/HTTP with the messages of the package opentelemetry-proto.

Prints its port, and then one JSON object a line for each request that has arrived.

    otlp_collector.py [--tls CERTIFICATE KEY] REPLY...

A reply is a status, `rejects=N` for 200 with a partial success, `silent`, or `unfinished` for the head of
200 without its body. The last one is repeated.
"""

import json
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


def value(any_value):
    return getattr(any_value, any_value.WhichOneof("value"))


def attributes(message):
    found = {it.key: value(it.value) for it in message.attributes}
    assert len(found) == len(message.attributes), "an attribute occurs twice"
    return found


def described(span):
    return {
        "name": span.name,
        "kind": Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        "trace": span.trace_id.hex(),
        "id": span.span_id.hex(),
        "parent": span.parent_span_id.hex(),
        "state": span.trace_state,
        "flags": span.flags,
        "start": span.start_time_unix_nano,
        "end": span.end_time_unix_nano,
        "is_error": MessageToDict(span.status).get("code") == "STATUS_CODE_ERROR",
        "attributes": attributes(span),
    }


class Collector(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    replies = []
    lock = threading.Lock()

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        export = ExportTraceServiceRequest.FromString(body)
        spans, resources, scopes = [], [], []
        for of_resource in export.resource_spans:
            resources.append(attributes(of_resource.resource))
            for of_scope in of_resource.scope_spans:
                scopes.append(of_scope.scope.name)
                spans += [described(span) for span in of_scope.spans]
        headers = {name.lower(): text for name, text in self.headers.items()}
        with self.lock:
            reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
            received = {"path": self.path, "headers": headers, "resources": resources}
            print(json.dumps(received | {"scopes": scopes, "spans": spans}), flush=True)
        self.reply(reply)

    def reply(self, reply):
        if reply == "silent":
            threading.Event().wait()
        if reply == "unfinished":
            self.send_response(200)
            self.send_header("Content-Length", "1")
            self.end_headers()
            threading.Event().wait()
        status, response = 200, ExportTraceServiceResponse()
        if reply.startswith("rejects="):
            response.partial_success.rejected_spans = int(reply.removeprefix("rejects="))
            response.partial_success.error_message = "too old"
        else:
            status = int(reply)
        body = response.SerializeToString()
        self.send_response(status)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


arguments = sys.argv[1:]
server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
server.daemon_threads = True
if arguments[0] == "--tls":
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*arguments[1:3])
    server.socket = context.wrap_socket(server.socket, server_side=True)
    arguments = arguments[3:]
Collector.replies = arguments
print(server.server_address[1], flush=True)
server.serve_forever()
