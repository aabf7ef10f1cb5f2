"""JSON schema of config files, from which editors complete and check options."""

from __future__ import annotations

from typing import Any

from equipoise.config.schema import to_config_value
from equipoise.methods import all_methods, find_method
from equipoise.settings.option_registry import Option, of_config, options
from equipoise.tasks import all_tasks, find_task
from equipoise.utils.config_file import PLAIN_SECTIONS

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]
TYPES = {int: "integer", float: "number", str: "string", bool: "boolean"}


def config_schema() -> Schema:
    """Return the schema of config files: all options of all methods and tasks.

    Options may stand at the top level by their short or full name, or in the section of their
    owner. Values of one option that belongs to several methods must fit one of them.
    """
    methods = {name: of_config(method, "method") for name, method in all_methods().items()}
    tasks = {name: of_config(spec.config, "task") for name, spec in all_tasks().items()}
    shared: dict[str, list[Option]] = {owner: [] for owner in PLAIN_SECTIONS}
    for option in options(find_method("fedavg"), find_task("synthetic")).values():
        if option.owner in shared and option.name not in ("method", "task"):
            shared[option.owner].append(option)
    properties: Schema = {
        "format": {"type": "integer", "description": "version of a run folder's config.json"},
        "method": _named_section("method", methods),
        "task": _named_section("task", tasks),
    }
    for owner, owner_schemas in shared.items():
        inner = {option.name: _option_schema(option) for option in owner_schemas}
        properties |= inner
        properties[owner] = {
            "type": "object",
            "properties": inner,
            "additionalProperties": False,
        }
    for owner, groups in (("method", methods), ("task", tasks)):
        for name, schemas in _by_option(groups).items():
            merged = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
            properties[f"{owner}.{name}"] = merged
            known = properties.get(name)
            properties[name] = merged if known is None else {"anyOf": [known, merged]}
    return {
        "$schema": DIALECT,
        "title": "Options of an Equipoise run",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


def _named_section(owner: str, groups: dict[str, list[Option]]) -> Schema:
    """Return the schema of a method or task: its name, or an object with name and options."""
    sections = [
        {
            "type": "object",
            "properties": {
                "name": {"const": name},
                **{option.name: _option_schema(option) for option in schemas},
            },
            "required": ["name"],
            "additionalProperties": False,
        }
        for name, schemas in groups.items()
    ]
    own = {"type": "string", "description": f"your own {owner} as module:Class or file.py:Class"}
    return {"anyOf": [{"enum": list(groups)}, own, *sections]}


def _by_option(groups: dict[str, list[Option]]) -> dict[str, list[Schema]]:
    """Return the distinct schemas of each option of some methods or tasks."""
    schemas: dict[str, list[Schema]] = {}
    for members in groups.values():
        for option in members:
            schema = _option_schema(option)
            known = schemas.setdefault(option.name, [])
            if schema not in known:
                known.append(schema)
    return schemas


def _option_schema(option: Option) -> Schema:
    """Return the schema of one option: type, bounds, choices, default and description."""
    rule = option.rule
    schema: Schema = {"type": TYPES.get(option.kind.type, "string")}
    bounds = {
        "minimum": rule.low,
        "maximum": rule.high,
        "exclusiveMinimum": rule.above,
        "exclusiveMaximum": rule.below,
    }
    schema |= {
        name: bound
        for name, bound in bounds.items()
        if bound is not None and abs(bound) != float("inf")
    }
    if rule.choices:
        schema["enum"] = list(rule.choices)
    about: Schema = {"description": rule.help}
    default = to_config_value(option.default)
    if isinstance(default, str | int | float | bool) and _is_json_value(default):
        about["default"] = default
    if option.kind.allows_schedule:
        schedule = {"type": "string", "pattern": r"^\w+\(.*\)$"}
        return {"anyOf": [schema, schedule], **about}
    return schema | about


def _is_json_value(value: str | float) -> bool:
    """Return whether JSON can hold a value: texts and finite numbers."""
    return isinstance(value, str) or value - value == 0
