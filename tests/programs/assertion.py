"""Attacks an assertion, and verifies it by the checks of docs/assertion.md.

The code block of that page for PyJWT is executed as it is; the checks with jwcrypto are the same.
`serve FILE` answers requests with 204 or 401, by the set in the file.
Otherwise reads {"assertion", "certificate", "keys", "private", "further"} on standard input. Prints a list of
[name, header fields, [result of PyJWT, result of jwcrypto]]: "ok", or the error. The first item is
no attack.
"""

import base64
import hashlib
import hmac
import http.server
import json
import re
import sys
import time

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwcrypto import jwk, jws

PAGE = open("docs/assertion.md").read()
SNIPPET = re.search(r"```python\n(import base64.*?)```", PAGE, re.DOTALL).group(1)
exec(SNIPPET)  # defines verify(fields, keys, certificate), ISSUER, AUDIENCE and TYPE


def by_jwcrypto(fields, keys, certificate):
    [assertion] = fields
    token = jws.JWS()
    token.allowed_algs = ["ES256", "EdDSA"]
    token.deserialize(assertion)
    head = token.jose_header
    if head.get("typ") != TYPE:
        raise ValueError("typ")
    key = jwk.JWKSet.from_json(keys).get_key(head["kid"])
    if key.get("alg") != head["alg"]:
        raise ValueError("alg")
    token.verify(key)
    claims, now = json.loads(token.payload), time.time()
    if claims["iss"] != ISSUER or claims["aud"] != AUDIENCE:
        raise ValueError("iss or aud")
    if not claims["nbf"] - 5 <= now < claims["exp"]:
        raise ValueError("nbf or exp")
    digest = base64.urlsafe_b64encode(hashlib.sha256(certificate).digest()).rstrip(b"=").decode()
    if claims["cnf"]["x5t#S256"] != digest:
        raise ValueError("cnf")


def encoded(value):
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def decoded(part):
    return json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))


def generated(alg):
    if alg == "ES256":
        return ec.generate_private_key(ec.SECP256R1())
    return ed25519.Ed25519PrivateKey.generate()


def attacks(assertion, keys, private):
    """Pairs of a name and the header fields."""
    head, claims, signature = assertion.split(".")
    header, payload = decoded(head), decoded(claims)
    alg = header["alg"]
    other = "EdDSA" if alg == "ES256" else "ES256"
    real = serialization.load_pem_private_key(private.encode(), None)
    public = real.public_key()

    def signed(change, key=real, algorithm=alg, names=header):
        return jwt.encode({**payload, **change}, key, headers={**names, "alg": algorithm})

    def named(algorithm):
        return f"{encoded({**header, 'alg': algorithm})}.{claims}"

    for algorithm in [other, "ES384", "RS256", "PS256", "es256", ""]:
        yield f"algorithm {algorithm}", [f"{named(algorithm)}.{signature}"]
    yield "algorithm and key of another kind", [signed({}, generated(other), other)]
    big = rsa.generate_private_key(65537, 2048)
    yield "a key of RSA", [signed({}, big, "RS256")]
    for algorithm in ["none", "None", "nOnE"]:
        yield f"{algorithm}, no signature", [f"{named(algorithm)}."]
        yield f"{algorithm}, two parts", [named(algorithm)]
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    pem = public.public_bytes(serialization.Encoding.PEM, form)
    der = public.public_bytes(serialization.Encoding.DER, form)
    published = json.loads(keys)["keys"][0]
    for name, secret in [("PEM", pem), ("DER", der), ("JWK", json.dumps(published).encode())]:
        start = named("HS256")
        mac = hmac.new(secret, start.encode(), hashlib.sha256).digest()
        mac = base64.urlsafe_b64encode(mac).rstrip(b"=").decode()
        yield f"HMAC with the public key as {name}", [f"{start}.{mac}"]
    yield "another audience", [signed({"aud": "payments"})]
    for claim in ["aud", "exp"]:
        rest = {name: it for name, it in payload.items() if name != claim}
        yield f"no {claim}", [jwt.encode(rest, real, headers=header)]
    yield "another issuer", [signed({"iss": "https://keygate.example.org"})]
    for name, shift in [("expired", -3600), ("not valid yet", 3600)]:
        times = {it: payload[it] + shift for it in ("exp", "nbf", "iat")}
        yield name, [signed(times)]
    mine = generated(alg)
    yield "another key", [signed({}, mine)]
    own = jwk.JWK.from_pyca(mine.public_key()).export_public(as_dict=True)
    yield "another key in the header", [signed({}, mine, names={**header, "jwk": own})]
    yield "another kid", [signed({}, mine, names={**header, "kid": "mine"})]
    yield "other claims", [f"{head}.{encoded({**payload, 'sub': 'CN=root'})}.{signature}"]
    yield "no signature", [f"{head}.{claims}."]
    yield "two headers", [assertion, assertion]
    yield "two valid assertions", [signed({"sub": "CN=other"}), assertion]
    yield "a forged header first", [signed({}, mine), assertion]
    yield "a forged header last", [assertion, signed({}, mine)]
    yield "two in one header", [f"{assertion}, {assertion}"]
    yield "an empty header", [""]
    yield "no header", []
    # A service that does not compare them accepts these two.
    yield "another type", [signed({}, names={**header, "typ": "JWT"})]
    digest = base64.urlsafe_b64encode(bytes(32)).rstrip(b"=").decode()
    yield "another certificate", [signed({"cnf": {"x5t#S256": digest}})]


def main():
    question = json.load(sys.stdin)
    assertion, keys = question["assertion"], question["keys"]
    certificate = base64.b64decode(question["certificate"])
    cases = [("genuine", [assertion]), *attacks(assertion, keys, question["private"])]
    cases += question["further"]
    results = []
    for name, fields in cases:
        outcomes = []
        for check in (
            lambda: verify(fields, jwt.PyJWKSet.from_json(keys), certificate),
            lambda: by_jwcrypto(fields, keys, certificate),
        ):
            try:
                check()
                outcomes.append("ok")
            except Exception as error:  # every error rejects
                outcomes.append(type(error).__name__ + ": " + str(error))
        results.append([name, fields, outcomes])
    json.dump(results, sys.stdout)


def serve(path):
    """As nginx asks: `Client-Cert` is compared if the request has it."""
    keys = open(path).read()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            try:
                certificate = self.headers.get("Client-Cert")
                certificate = certificate and base64.b64decode(certificate.strip(":"))
                fields = self.headers.get_all("Keygate-Assertion", [])
                verify(fields, jwt.PyJWKSet.from_json(keys), certificate)
                self.send_response(204)
            except Exception:  # every error rejects
                self.send_response(401)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


serve(sys.argv[2]) if sys.argv[1:2] == ["serve"] else main()
