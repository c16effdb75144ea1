"""Prints a line for each public key of a JSON array of PEM texts on standard input: the collection
of the badkeys blocklist that has the key, or null. The blocklist is in $XDG_CACHE_HOME/badkeys."""

import json
import sys

from badkeys import checkpubkey

for pem in json.load(sys.stdin):
    result = checkpubkey(pem, checks=["blocklist"])
    assert result["type"] not in ("notfound", "unparseable", "unsupported"), result
    print(json.dumps(result["results"].get("blocklist", {}).get("subtest")))
