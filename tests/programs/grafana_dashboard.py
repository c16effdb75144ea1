"""Reads a dashboard with Grafana's own models, and prints unknown fields and fields of a wrong type.

The models drop unknown fields and check no types. A field is therefore unknown if it is missing after the dashboard
was written again. The type of each value is compared with the declared type of its field.
"""

import enum
import json
import sys
import typing

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard


def written(model):
    return json.loads(JSONEncoder().encode(model))


def lost(place, before, after):
    """What is in `before` and not in `after`."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if key in after:
                yield from lost(f"{place}.{key}", value, after[key])
            else:
                yield f"{place}.{key}: unknown"
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after)):
            yield from lost(f"{place}[{index}]", one, other)
    elif before != after:
        yield f"{place}: {before!r} is read as {after!r}"


def wrong(place, value, declared):
    """Where `value` is not what is declared."""
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if declared in (typing.Any, object):
        if hasattr(value, "to_json"):
            yield from wrong_inside(place, value)  # what a panel has by its type
    elif origin is typing.Union:
        tried = [list(wrong(place, value, one)) for one in arguments if one is not type(None)]
        if value is None and type(None) in arguments:
            return
        if all(tried):
            yield from max(tried, key=lambda problems: len(problems[0].split(":")[0]))  # the one that was meant
    elif origin is typing.Literal:
        if value not in arguments:
            yield f"{place}: {value!r} is none of {arguments}"
    elif origin is list:
        if isinstance(value, list):
            for index, part in enumerate(value):
                yield from wrong(f"{place}[{index}]", part, arguments[0])
        else:
            yield f"{place}: {value!r} is not a list"
    elif origin is dict:
        if isinstance(value, dict):
            for key, part in value.items():
                yield from wrong(f"{place}.{key}", part, arguments[1])
        else:
            yield f"{place}: {value!r} is no object"
    elif issubclass(declared, enum.Enum):
        if value not in [one.value for one in declared]:
            yield f"{place}: {value!r} is none of {[one.value for one in declared]}"
    elif isinstance(value, dict) and hasattr(declared, "from_json"):
        model = declared.from_json(value)  # some are left as they were read
        yield from lost(place, value, written(model))
        yield from wrong_inside(place, model)
    elif declared is float and type(value) is int:
        return
    elif not isinstance(value, declared) or (isinstance(value, bool) and declared is not bool):
        yield f"{place}: {value!r} is no {declared.__name__}"
    else:
        yield from wrong_inside(place, value)


def wrong_inside(place, value):
    """The same for every field, if it is a model."""
    if hasattr(value, "to_json"):
        declared = typing.get_type_hints(type(value))
        for name, part in vars(value).items():
            yield from wrong(f"{place}.{name}", part, declared.get(name, typing.Any))


def main(path):
    register_default_plugins()
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    dashboard = Dashboard.from_json(content)
    problems = [*lost("dashboard", content, written(dashboard)), *wrong_inside("dashboard", dashboard)]
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
