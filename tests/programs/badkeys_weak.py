"""Prints a line for each RSA key of a JSON array of [modulus, exponent], in hex, on standard input: the
checks of badkeys that the key fails."""

import json
import sys

from badkeys import checkrsa

CHECKS = ["fermat", "roca", "rsainvalid", "rsapoly", "smalld", "smallfactors"]

for modulus, exponent in json.load(sys.stdin):
    found = checkrsa(int(modulus, 16), e=int(exponent, 16), checks=CHECKS)
    print(json.dumps(sorted(found)))
