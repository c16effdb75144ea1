"""Prints a JSON array with two new public keys, in PEM, of each algorithm that Debian's OpenSSL does
not have or that needs parameters of its own."""

import json

from cryptography.hazmat.primitives.asymmetric import dsa, mldsa, mlkem
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

makers = [lambda: dsa.generate_private_key(1024)]
makers += [mldsa.MLDSA44PrivateKey.generate, mldsa.MLDSA65PrivateKey.generate]
makers += [mldsa.MLDSA87PrivateKey.generate, mlkem.MLKEM768PrivateKey.generate]
makers += [mlkem.MLKEM1024PrivateKey.generate]
keys = [make().public_key() for make in makers for _ in range(2)]
form = (Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
print(json.dumps([key.public_bytes(*form).decode() for key in keys]))
