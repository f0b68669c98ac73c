"""YAML that costs no more than its text: aliases that would unfold into millions of entries are refused."""

from typing import Any

import yaml

MOST_NODES = 100_000


def load_yaml(text: str) -> Any:
    """Return plain data.

    Raises:
        ValueError: it is no YAML, or too much of it (see `check_aliases`); one line.
    """
    check_aliases(text)
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(" ".join(str(error).split())) from error


def check_aliases(text: str) -> None:
    """Refuse YAML that has more than `MOST_NODES` entries once its aliases are unfolded, or one within itself.

    Text that is no YAML passes: whoever reads it says why.

    Raises:
        ValueError: one line.
    """
    if "*" not in text:
        return
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        count = 0 if root is None else _unfolded(root, {})
    except (yaml.YAMLError, RecursionError):
        return
    if count > MOST_NODES:
        raise ValueError(f"its aliases unfold into more than {MOST_NODES:,} entries; fix: write them out, or fewer")


def _unfolded(node: yaml.Node, counts: dict[int, int | None]) -> int:
    """Count the entries below a node, each alias as what it stands for."""
    if id(node) in counts:
        known = counts[id(node)]
        if known is None:
            raise ValueError("an alias stands within what it names; fix: write it out")
        return known
    counts[id(node)] = None
    children: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        children = [child for pair in node.value for child in pair]
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    count = 1 + sum(_unfolded(child, counts) for child in children)
    counts[id(node)] = count
    return count
