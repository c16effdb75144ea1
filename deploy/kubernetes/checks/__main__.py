"""Runs all checks, in an order in which the first failure is the most specific one."""

import sys

import agreement
import pods
import problems
import render
import schemas
import security


def main() -> None:
    rendered = render.every()
    problems.end_if_any()
    for name, objects in rendered.items():
        schemas.check(name, objects)
    problems.end_if_any()
    found = {name: agreement.Deployed(name, objects) for name, objects in rendered.items()}
    for name, deployed in found.items():
        security.check(name, deployed.template)
        agreement.check(deployed)
    problems.end_if_any()
    started = [pods.start(name, objects) for name, objects in rendered.items()]
    if any([pod.wait() for pod in started]):
        sys.exit(1)


if __name__ == "__main__":
    main()
