"""A host of an authorizer: grpcio with the messages of Envoy's API and of gRPC health checks.

Reads operations as JSON lines and writes their results as JSON lines. All use one channel.
"""

import json
import sys
import threading

import grpc
from envoy.service.auth.v3 import external_auth_pb2, external_auth_pb2_grpc
from google.protobuf.json_format import MessageToDict, ParseDict
from grpc_health.v1 import health_pb2, health_pb2_grpc

TIMEOUT = 30
CHECK = "/envoy.service.auth.v3.Authorization/Check"


def outcome(call):
    try:
        message = call()
    except grpc.RpcError as error:
        return {"code": error.code().name, "details": error.details()}
    if isinstance(message, bytes):
        message = external_auth_pb2.CheckResponse.FromString(message)
    return {"code": "OK", "message": MessageToDict(message, preserving_proto_field_name=True)}


def request(fields):
    return ParseDict(fields, external_auth_pb2.CheckRequest())


class Host:
    def __init__(self, channel):
        self.channel = channel
        self.authorization = external_auth_pb2_grpc.AuthorizationStub(channel)
        self.health = health_pb2_grpc.HealthStub(channel)

    def check(self, fields, **options):
        return outcome(lambda: self.authorization.Check(request(fields), timeout=TIMEOUT, **options))

    def compressed(self, fields):
        return self.check(fields, compression=grpc.Compression.Gzip)

    def raw(self, text):
        """A question of any bytes, in hexadecimal."""
        call = self.channel.unary_unary(CHECK)
        return outcome(lambda: call(bytes.fromhex(text), timeout=TIMEOUT))

    def method(self, path):
        call = self.channel.unary_unary(path)
        return outcome(lambda: call(b"", timeout=TIMEOUT))

    def serving(self, service):
        request = health_pb2.HealthCheckRequest(service=service)
        return outcome(lambda: self.health.Check(request, timeout=TIMEOUT))

    def watch(self, service):
        request = health_pb2.HealthCheckRequest(service=service)
        return outcome(lambda: next(self.health.Watch(request, timeout=TIMEOUT)))

    def parallel(self, requests):
        """Asks all questions at once, and waits for all answers."""
        calls = [self.authorization.Check.future(request(it), timeout=TIMEOUT) for it in requests]
        return [outcome(call.result) for call in calls]

    def cancelled(self, count, fields):
        """Asks and cancels at once, `count` times, and waits for the last of them."""
        message = request(fields)
        left, ended = threading.Semaphore(0), 0
        for _ in range(count):
            call = self.authorization.Check.future(message, timeout=TIMEOUT)
            call.add_done_callback(lambda _: left.release())
            call.cancel()
        for _ in range(count):
            left.acquire()
            ended += 1
        return {"ended": ended}

    def deadline(self, seconds, fields):
        return outcome(lambda: self.authorization.Check(request(fields), timeout=seconds))


def open_channel(target, options, files):
    """A channel without TLS, or over TLS with these files: CA, and certificate and key, if any."""
    if not files:
        return grpc.insecure_channel(target, options)
    ca, certificate, key = [open(file, "rb").read() for file in files] + [None] * (3 - len(files))
    credentials = grpc.ssl_channel_credentials(ca, key, certificate)
    return grpc.secure_channel(target, credentials, options)


def main(target, authority, *files):
    options = [("grpc.default_authority", authority)]
    with open_channel(target, options, files) as channel:
        host = Host(channel)
        for line in sys.stdin:
            operation, *arguments = json.loads(line)
            print(json.dumps(getattr(host, operation)(*arguments)), flush=True)


main(*sys.argv[1:])
