"""An HTTP/1.1 server. It does not read the body of a request to /early, and does not respond to
one to /unread. Other responses have the target of the request as their content. Argument: port."""

import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_GET(self):
        if self.path.startswith("/unread"):
            threading.Event().wait()
        if self.path.startswith("/smuggled"):
            time.sleep(0.02)  # the connection looks idle
        if not self.path.startswith("/early"):
            self.rfile.read(int(self.headers.get("content-length", 0)))
        content = self.path.encode("latin-1")
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET

    def log_message(self, *_):
        pass


ThreadingHTTPServer.request_queue_size = 128
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
