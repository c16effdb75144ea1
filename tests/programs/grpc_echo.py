"""A gRPC server, or a client that calls it; both are grpcio's own, with bytes for messages."""

import sys
from concurrent import futures

import grpc

NAME = "test.Echo"


def unary(request, context):
    if request == b"fail":
        context.set_trailing_metadata((("x-why", "asked for"),))
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, "as you wish")
    if request == b"assertions":
        fields = context.invocation_metadata()
        return " ".join(it.value for it in fields if it.key == "keygate-assertion").encode()
    return request


def stream(requests, context):
    for request in requests:
        yield request


def serve():
    server = grpc.server(futures.ThreadPoolExecutor(8))
    handlers = {
        "Unary": grpc.unary_unary_rpc_method_handler(unary),
        "Stream": grpc.stream_stream_rpc_method_handler(stream),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    server.wait_for_termination()


def call(target, ca, certificate, key):
    read = lambda path: open(path, "rb").read()
    credentials = grpc.ssl_channel_credentials(read(ca), read(key), read(certificate))
    with grpc.secure_channel(target, credentials) as channel:
        unary = channel.unary_unary(f"/{NAME}/Unary")
        assert unary(b"hello", timeout=20) == b"hello"
        assert unary(b"x" * 1_000_000, timeout=20) == b"x" * 1_000_000
        try:
            unary(b"fail", timeout=20)
            raise AssertionError("it should fail")
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.FAILED_PRECONDITION, error
            assert error.details() == "as you wish", error
            assert ("x-why", "asked for") in [tuple(it) for it in error.trailing_metadata()], error
        print("assertions:", unary(b"assertions", timeout=20).decode())
        # Each message gets its response before the next is sent.
        sent = []

        def messages():
            for number in range(20):
                sent.append(number)
                yield b"%d" % number

        answers = channel.stream_stream(f"/{NAME}/Stream")(messages(), timeout=20)
        assert [int(answer) for answer in answers] == list(range(20))
    print("all is well")


serve() if sys.argv[1] == "serve" else call(*sys.argv[2:])
