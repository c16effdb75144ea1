"""An HTTP/2 server, which is hypercorn. It responds to a request of /hold once one of /release
has come. The status of /held is 200 and the number of those that wait."""

import asyncio
import socket

from hypercorn.asyncio import serve as hypercorn
from hypercorn.config import Config

released = asyncio.Event()
held = 0


async def hold(scope, receive, send):
    global held
    if scope["type"] != "http":
        return
    status = 200
    while (await receive()).get("more_body"):
        pass
    if scope["path"] == "/hold":
        held += 1
        try:
            await released.wait()
        finally:
            held -= 1
    elif scope["path"] == "/release":
        released.set()
        while held:
            await asyncio.sleep(0.01)
        released.clear()
    elif scope["path"] == "/held":
        status = 200 + held
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def serve():
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    await hypercorn(hold, config)


asyncio.run(serve())
