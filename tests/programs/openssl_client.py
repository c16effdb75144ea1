"""A TLS client by OpenSSL 4 with a certificate. Sends one request and prints, a line each: the
key-exchange group, the algorithm of the server's key, the status line and the body.

Arguments: address, file of CAs, certificate chain, private key. OPENSSL_CONF names a file with the
key-exchange groups and signature schemes."""

import socket
import sys

from OpenSSL import SSL

address, cas, certificate, private_key = sys.argv[1:]

context = SSL.Context(SSL.TLS_CLIENT_METHOD)
context.load_verify_locations(cas)
context.set_verify(SSL.VERIFY_PEER, lambda *arguments: bool(arguments[-1]))
context.use_certificate_chain_file(certificate)
context.use_privatekey_file(private_key)
host, port = address.rsplit(":", 1)
tcp = socket.create_connection((host, int(port)), timeout=20)
tcp.setblocking(True)
tls = SSL.Connection(context, tcp)
tls.set_tlsext_host_name(b"localhost")
tls.set_connect_state()
tls.do_handshake()
print(tls.get_group_name())
print(type(tls.get_peer_certificate(as_cryptography=True).public_key()).__name__)
tls.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
response = b""
try:
    while True:
        response += tls.recv(65536)
except (SSL.ZeroReturnError, SSL.SysCallError):
    pass
print(response.decode())
