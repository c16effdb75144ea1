"""What is wrong, and where. Checks go on after a problem, so that one run shows all of them."""

import sys

_found: list[str] = []


def expect(truth: object, where: str, what: str) -> None:
    """Says what is wrong, unless it is right."""
    if not truth:
        _found.append(f"{where}: {what}")
        print(f"deploy/kubernetes: {_found[-1]}", file=sys.stderr)


def end_if_any() -> None:
    """What comes later rests on what came before."""
    if _found:
        sys.exit(f"deploy/kubernetes: {len(_found)} problems")
