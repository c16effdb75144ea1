"""An HTTP/2 server, which is hypercorn. It responds to a request of /hold once one of /release
has come. The status of /held is 200 and the number of those that wait. It reads no body of /unread
and /early, and responds to /early only. The content of other responses is the path. Argument: port,
0 by default."""

import asyncio
import socket
import sys

from hypercorn.asyncio import serve as hypercorn
from hypercorn.config import Config

released = asyncio.Event()
held = 0


async def hold(scope, receive, send):
    global held
    if scope["type"] != "http":
        return
    status, content = 200, scope["raw_path"]
    if content.startswith(b"/unread"):
        await asyncio.Event().wait()
    while not content.startswith(b"/early") and (await receive()).get("more_body"):
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
    await send({"type": "http.response.start", "status": status, "headers": [
        (b"content-length", str(len(content)).encode())]})
    await send({"type": "http.response.body", "body": content})


async def serve():
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    listener = socket.create_server(("127.0.0.1", port))
    print(listener.getsockname()[1], flush=True)
    config = Config()
    config.bind = [f"fd://{listener.detach()}"]
    await hypercorn(hold, config)


asyncio.run(serve())
