"""Collects the problems that the checks find, so that one run shows all of them."""

import sys

_found: list[str] = []


def expect(truth: object, where: str, problem: str) -> None:
    """Records and prints the problem unless `truth` holds."""
    if not truth:
        _found.append(f"{where}: {problem}")
        print(f"deploy/kubernetes: {_found[-1]}", file=sys.stderr)


def end_if_any() -> None:
    """Exits if there are problems, because the next checks depend on the previous ones."""
    if _found:
        sys.exit(f"deploy/kubernetes: {len(_found)} problems")
