"""Orders a certificate from an ACME server (RFC 8555) that validates every challenge.

acme_order.py DIRECTORY CA NAME KEY OUT: writes the certificate of KEY (PEM) for the DNS name NAME,
and the chain after it, to OUT.
"""
import base64
import json
import ssl
import sys
import time
import urllib.error
import urllib.request

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.x509.oid import NameOID

directory_url, ca, name, key_path, out = sys.argv[1:]
context = ssl.create_default_context(cafile=ca)


def encoded(data):
    if isinstance(data, dict):
        data = json.dumps(data).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def fetch(url, body=None, method=None):
    headers = {"Content-Type": "application/jose+json"}
    request = urllib.request.Request(url, body, headers, method=method)
    return urllib.request.urlopen(request, context=context)


account = ec.generate_private_key(ec.SECP256R1())
point = account.public_key().public_numbers()
jwk = {
    "kty": "EC",
    "crv": "P-256",
    "x": encoded(point.x.to_bytes(32, "big")),
    "y": encoded(point.y.to_bytes(32, "big")),
}
directory = json.load(fetch(directory_url))
nonces = []
kid = None


def post(url, payload):
    """The response to a signed request; payload None is a POST-as-GET."""
    nonce = nonces.pop() if nonces else fetch(directory["newNonce"], method="HEAD").headers["Replay-Nonce"]
    header = {"alg": "ES256", "nonce": nonce, "url": url, **({"kid": kid} if kid else {"jwk": jwk})}
    protected, payload = encoded(header), "" if payload is None else encoded(payload)
    signature = account.sign(f"{protected}.{payload}".encode(), ec.ECDSA(hashes.SHA256()))
    signature = b"".join(part.to_bytes(32, "big") for part in decode_dss_signature(signature))
    jws = {"protected": protected, "payload": payload, "signature": encoded(signature)}
    try:
        response = fetch(url, json.dumps(jws).encode())
    except urllib.error.HTTPError as error:
        sys.exit(f"{url}: {error}: {error.read()}")
    nonces.append(response.headers["Replay-Nonce"])
    return response


def wait_for(url, states):
    for _ in range(600):
        value = json.load(post(url, None))
        if value["status"] in states:
            return value
        time.sleep(0.1)  # the server is polled
    sys.exit(f"{url}: still {value['status']}")


kid = post(directory["newAccount"], {"termsOfServiceAgreed": True}).headers["Location"]
response = post(directory["newOrder"], {"identifiers": [{"type": "dns", "value": name}]})
order_url, order = response.headers["Location"], json.load(response)
for url in order["authorizations"]:
    challenges = json.load(post(url, None))["challenges"]
    post(next(it["url"] for it in challenges if it["type"] == "http-01"), {})
    wait_for(url, ["valid"])
wait_for(order_url, ["ready"])
with open(key_path, "rb") as file:
    key = serialization.load_pem_private_key(file.read(), None)
request = x509.CertificateSigningRequestBuilder()
request = request.subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
request = request.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), False)
request = request.sign(key, hashes.SHA256())
post(order["finalize"], {"csr": encoded(request.public_bytes(serialization.Encoding.DER))})
order = wait_for(order_url, ["valid"])
with open(out, "wb") as file:
    file.write(post(order["certificate"], None).read())
