"""What generated problems are named by: `NAME#key=number,…`."""

from collections.abc import Sequence

from r3env.spelling import nearest


def parse_spec(data: str, keys: Sequence[str]) -> tuple[str, dict[str, int]]:
    """Return the name in front of `#`, and the numbers behind it by key.

    Args:
        data: Such as `train#seed=1,size=200`.
        keys: Those that may be set.

    Raises:
        ValueError: Another key, or a value that is no whole number.
    """
    name, _, settings = data.partition("#")
    values: dict[str, int] = {}
    for setting in filter(None, settings.split(",")):
        key, _, value = setting.partition("=")
        if key not in keys:
            raise ValueError(f"data: {data!r}: unknown key {key!r}; the nearest is {nearest(key, keys)}")
        if not value.isdecimal():
            raise ValueError(f"data: {data!r}: {key} must be a whole number, it is {value!r}")
        values[key] = int(value)
    return name, values
