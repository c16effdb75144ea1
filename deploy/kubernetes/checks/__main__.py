"""All checks, those first that say most about what is wrong."""

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
    for name, deployed in found.items():
        pods.start(deployed)
        problems.end_if_any()
        print(f"deploy/kubernetes: {name}: ok", flush=True)


if __name__ == "__main__":
    main()
