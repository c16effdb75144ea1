"""A WebSocket server that echoes, or a client of it; both are from the websockets package."""

import asyncio
import ssl
import sys

import websockets


async def echo(socket, path=None):
    async for message in socket:
        await socket.send(message)


async def serve():
    async with websockets.serve(echo, "127.0.0.1", 0, max_size=None) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.Future()


async def call(port, ca, certificate, key):
    context = ssl.create_default_context(cafile=ca)
    context.load_cert_chain(certificate, key)
    url = f"wss://localhost:{port}/echo"
    async with websockets.connect(url, ssl=context, max_size=None) as socket:
        for message in ["hello", b"bytes", "x" * 3_000_000, ""]:
            await socket.send(message)
            assert await socket.recv() == message
        pong = await socket.ping()
        await asyncio.wait_for(pong, 20)
    print("closed with", socket.close_code)


asyncio.run(serve() if sys.argv[1] == "serve" else call(*sys.argv[2:]))
