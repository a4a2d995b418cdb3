"""Untrusted YAML as plain data: small, without aliases; any fault in it is a `ConfigError` of one sentence.

A few hundred bytes of aliases to aliases expand to gigabytes when they are copied or printed ("billion laughs").
Nothing here needs an alias, so the first one is refused before anything is built from it. What is composed here has to
be as plain: no functions to call, no numbers that this reader refuses.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from sofed_flwr.core.errors import ConfigError

MOST_BYTES = 50_000
"""A run's configuration has 3,000; this much is parsed in two seconds at most."""
MOST_BITS = 63
RESOLVER = re.compile(r"\$\{.*:", re.DOTALL)
"""May call a function of OmegaConf's, as `${oc.env:HOME}` does; a plain `${buffer}` has no colon."""


class _Loader(yaml.SafeLoader):
    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.get_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "aliases are not accepted", mark)
        return super().compose_node(parent, index)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Python refuses to print a number of many thousand digits."""
        number = int(super().construct_yaml_int(node))
        if number.bit_length() > MOST_BITS:
            problem = f"a whole number of more than {MOST_BITS} bits"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return number


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def bytes_of(file: Path) -> bytes:
    """A file's content; of a large one only as much as is needed to refuse it."""
    with file.open("rb") as stream:
        return stream.read(MOST_BYTES + 1)


def read_yaml(content: bytes, what: str) -> dict[str, Any]:
    """The mapping that `content` holds; `what` is its name in an error message."""
    data = _parsed(yaml.load, content, what)
    if not isinstance(data, dict):
        raise ConfigError(f"{what} holds no keys")
    return data


def read_nodes(content: bytes, what: str) -> yaml.MappingNode:
    """The same as PyYAML's nodes, which know where in the text they are."""
    node = _parsed(yaml.compose, content, what)
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{what} holds no keys")
    return node


def _parsed(parse: Callable[..., Any], content: bytes, what: str) -> Any:
    if len(content) > MOST_BYTES:
        raise ConfigError(f"{what} has more than {MOST_BYTES} bytes")
    try:
        return parse(content, _Loader)
    except RecursionError as error:
        raise ConfigError(f"{what} is nested too deeply") from error
    # PyYAML raises all of these for odd tags
    except (yaml.YAMLError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(f"{what} is not valid YAML ({_place_and_problem(error)})") from error


def write_yaml(data: dict[str, Any]) -> str:
    """What `read_yaml` reads, in the order of the keys."""
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False))


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` -> `{"a.b": 1}`."""
    values: dict[str, Any] = {}
    for key, value in tree.items():
        values |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return values


def refuse_resolvers(values: Mapping[str, Any]) -> None:
    """Overrides are stored in `config.yaml`, and a resumed run's file is untrusted: no function is called."""
    for key, value in values.items():
        if RESOLVER.search(str(value)):
            raise ConfigError(
                f"{key}={value}: functions such as ${{oc.env:NAME}} are not called; write the value itself"
            )


def refuse_long_numbers(values: Mapping[str, Any]) -> None:
    """Devices and a resumed run read the configuration as plain YAML, which has none."""
    for key, value in values.items():
        if isinstance(value, int) and value.bit_length() > MOST_BITS:
            raise ConfigError(f"{key}={value}: a whole number of more than {MOST_BITS} bits")


def _place_and_problem(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    place = f"line {mark.line + 1}: " if mark else ""
    return place + " ".join(str(getattr(error, "problem", None) or error).split())[:200]
