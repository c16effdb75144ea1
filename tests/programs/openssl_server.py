"""A TLS server by OpenSSL 4. Responds to each request with the key-exchange group.

Arguments: address, certificate chain, private key. OPENSSL_CONF names a file with the groups."""

import socket
import sys
import threading

from OpenSSL import SSL

address, certificate, private_key = sys.argv[1:]
context = SSL.Context(SSL.TLS_SERVER_METHOD)
context.use_certificate_chain_file(certificate)
context.use_privatekey_file(private_key)


def serve(tcp):
    tls = SSL.Connection(context, tcp)
    tls.set_accept_state()
    try:
        while True:
            request = b""
            while not request.endswith(b"\r\n\r\n"):
                request += tls.recv(65536)
            body = f"{tls.get_group_name()}\n".encode()
            tls.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
    except SSL.Error:
        tcp.close()


host, port = address.rsplit(":", 1)
with socket.create_server((host, int(port))) as listener:
    while True:
        accepted, _ = listener.accept()
        threading.Thread(target=serve, args=[accepted], daemon=True).start()
