"""A WebSocket server that echoes over HTTP/2 (RFC 8441), which is hypercorn, or a client of it made
of the packages h2 and wsproto."""

import asyncio
import socket
import ssl
import sys

import h2.config
import h2.connection
import h2.events
import h2.settings
from hypercorn.asyncio import serve as hypercorn
from hypercorn.config import Config
from wsproto import ConnectionType
from wsproto.connection import Connection, ConnectionState
from wsproto.events import BytesMessage, CloseConnection, Ping, Pong, TextMessage


async def echo(scope, receive, send):
    """Echoes the messages of a WebSocket; anything else is a 404 of hypercorn's."""
    if scope["type"] != "websocket":
        return
    assert scope["http_version"] == "2", scope["http_version"]
    assert (await receive())["type"] == "websocket.connect"
    await send({"type": "websocket.accept"})
    while (event := await receive())["type"] == "websocket.receive":
        message = {name: event[name] for name in ["text", "bytes"] if event.get(name) is not None}
        await send({"type": "websocket.send", **message})


async def serve():
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    config.websocket_max_message_size = 16 << 20
    await hypercorn(echo, config)


class Http2:
    """One stream of an HTTP/2 connection, as a stream of bytes."""

    def __init__(self, port, context):
        self.tls = context.wrap_socket(
            socket.create_connection(("127.0.0.1", port), 20), server_hostname="localhost"
        )
        assert self.tls.selected_alpn_protocol() == "h2"
        self.http2 = h2.connection.H2Connection(h2.config.H2Configuration())
        self.http2.initiate_connection()
        self.flush()
        self.has_settings = False
        self.status = None
        self.received = b""
        self.has_ended = False

    def flush(self):
        self.tls.sendall(self.http2.data_to_send())

    def wait(self, until):
        while not until():
            data = self.tls.recv(65536)
            assert data, "the connection has ended"
            for event in self.http2.receive_data(data):
                if isinstance(event, h2.events.RemoteSettingsChanged):
                    self.has_settings = True
                elif isinstance(event, h2.events.ResponseReceived):
                    self.status = dict(event.headers)[b":status"].decode()
                elif isinstance(event, h2.events.DataReceived):
                    self.received += event.data
                    self.http2.acknowledge_received_data(
                        event.flow_controlled_length, event.stream_id
                    )
                elif isinstance(event, h2.events.StreamEnded):
                    self.has_ended = True
                elif isinstance(event, h2.events.StreamReset):
                    assert event.error_code == 0, f"the stream was reset: {event.error_code}"
                    self.has_ended = True
            self.flush()

    def connect(self, protocol):
        self.wait(lambda: self.has_settings)
        code = h2.settings.SettingCodes.ENABLE_CONNECT_PROTOCOL
        assert self.http2.remote_settings[code] == 1, "extended CONNECT is not offered"
        self.http2.send_headers(
            1,
            [
                (":method", "CONNECT"),
                (":protocol", protocol),
                (":scheme", "https"),
                (":path", "/echo"),
                (":authority", "localhost"),
                ("sec-websocket-version", "13"),
            ],
        )
        self.flush()
        self.wait(lambda: self.status is not None)

    def send(self, data):
        while data:
            self.wait(lambda: self.http2.local_flow_control_window(1) > 0)
            most = min(self.http2.local_flow_control_window(1), self.http2.max_outbound_frame_size)
            self.http2.send_data(1, data[:most])
            self.flush()
            data = data[most:]


def call(port, ca, certificate, key):
    context = ssl.create_default_context(cafile=ca)
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2"])
    stream = Http2(int(port), context)
    stream.connect("websocket")
    print("status", stream.status)
    if stream.status != "200":
        return
    socket_ = Connection(ConnectionType.CLIENT)

    def events():
        """The events of all that has come."""
        stream.wait(lambda: stream.received or stream.has_ended)
        socket_.receive_data(stream.received)
        stream.received = b""
        return list(socket_.events())

    for message in ["hello", b"bytes", "x" * 3_000_000, ""]:
        kind = BytesMessage if isinstance(message, bytes) else TextMessage
        stream.send(socket_.send(kind(data=message)))
        echoed, is_whole = type(message)(), False
        while not is_whole:
            for event in events():
                if isinstance(event, Ping):
                    stream.send(socket_.send(event.response()))
                else:
                    assert isinstance(event, kind), event
                    echoed, is_whole = echoed + event.data, event.message_finished
        assert echoed == message
    stream.send(socket_.send(CloseConnection(code=1000)))
    while socket_.state is not ConnectionState.CLOSED:
        for event in events():
            assert isinstance(event, (CloseConnection, Pong)), event
            if isinstance(event, CloseConnection):
                print("closed with", int(event.code))
    stream.http2.end_stream(1)
    stream.flush()
    stream.wait(lambda: stream.has_ended)


if sys.argv[1] == "serve":
    asyncio.run(serve())
else:
    call(*sys.argv[2:])
