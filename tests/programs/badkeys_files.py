"""Prints a line for each file of a directory that badkeys reads as an RSA key: its name, and the checks of
badkeys that the key fails."""

import json
import sys
from pathlib import Path

from badkeys.checks import detectandcheck

CHECKS = ["fermat", "roca", "rsainvalid", "rsapoly", "sharedprimes", "smalld", "smallfactors"]

for path in sorted(Path(sys.argv[1]).iterdir()):
    if path.is_file():
        found = detectandcheck(path.read_text(), checks=CHECKS)
        if found["type"] == "rsa":
            print(json.dumps([path.name, sorted(found["results"])]))
