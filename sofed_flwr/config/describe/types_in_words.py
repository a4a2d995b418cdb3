"""The type and range of a value, in words: from the JSON schema that pydantic makes of any annotation."""

from collections.abc import Mapping, Sequence
from typing import Any

Schema = Mapping[str, Any]

NAMES = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text", "null": "null"}
BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "more than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
}


def in_words(schema: Schema) -> str:
    """`{"type": "integer", "minimum": 1}` -> whole number, at least 1."""
    if not schema:
        return "any value"
    if "anyOf" in schema:
        return ", or ".join(map(in_words, schema["anyOf"]))
    if "enum" in schema or "const" in schema:
        return either(schema.get("enum") or [schema["const"]])
    if schema.get("type") == "array":
        return _list(schema)
    if schema.get("type") == "object":
        return f"the keys {', '.join(schema['properties'])}" if "properties" in schema else "keys and values"
    bounds = [f"{words} {schema[name]}" for name, words in BOUNDS.items() if name in schema]
    return ", ".join(filter(None, [NAMES.get(schema.get("type", ""), ""), " and ".join(bounds)]))


def either(names: Sequence[object]) -> str:
    """Names in a sentence: `a, b or c`."""
    *others, last = map(str, names)
    return f"{', '.join(others)} or {last}" if others else last


def _list(schema: Schema) -> str:
    items: Schema = schema.get("items") or next(iter(schema.get("prefixItems", [])), {})
    match schema.get("minItems"), schema.get("maxItems"):
        case None, None:
            count = ""
        case fewest, None:
            count = f" of {fewest} or more"
        case None, most:
            count = f" of at most {most}"
        case fewest, most:
            count = f" of {fewest}" if fewest == most else f" of {fewest} to {most}"
    return f"list{count}, each a {in_words(items)}" if items else f"list{count}"
