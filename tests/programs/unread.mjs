// A server as `unread.py`, of HTTP/1.1 or HTTP/2. A response to /trailers has the trailer `x-sum` of the
// request as its content, and one to /session the number of its HTTP/2 connection.
// Arguments: port, version, SETTINGS_MAX_HEADER_LIST_SIZE.
import http from "node:http";
import http2 from "node:http2";

const [port, version, maxHeaderListSize = 65535] = process.argv.slice(2);
const serve = (request, response) => {
  const respond = () => {
    let content = request.url;
    if (request.url === "/trailers") content = `${request.trailers["x-sum"]}`;
    if (request.url === "/session") content = `${request.stream.session.number}`.padStart(3, "0");
    response.setHeader("content-length", Buffer.byteLength(content, "latin1"));
    response.end(content, "latin1");
  };
  if (request.url.startsWith("/unread")) return;
  if (request.url.startsWith("/early")) respond();
  else request.on("end", respond).resume();
};
const server =
  version === "2"
    ? http2.createServer({ settings: { maxHeaderListSize: Number(maxHeaderListSize) } }, serve)
    : http.createServer(serve);
let sessions = 0;
server.on("session", (session) => (session.number = ++sessions));
server.listen(Number(port), "127.0.0.1");
