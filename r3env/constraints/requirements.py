"""What a prompt requires of a text, and what a text fails to meet."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from r3env.constraints import marks, structure, vocabulary  # noqa: F401 - they register their kinds
from r3env.constraints.kind import KINDS
from r3env.constraints.reading import forms, words
from r3env.spelling import nearest

TOPIC, LENGTH = "topic", "length"


@dataclass(frozen=True)
class Requirements:
    """What a text has to meet.

    Args:
        topic: Words that it names, in the singular or plural.
        low: Words at least.
        high: Words at most.
        constraints: Each has `kind` and the parameters of that kind.
    """

    topic: str
    low: int
    high: int
    constraints: Sequence[Mapping[str, Any]]

    @classmethod
    def parse(cls, text: str) -> "Requirements":
        """Read requirements from JSON.

        Raises:
            ValueError: The text is something else.
        """
        try:
            read = cls(**json.loads(text))
            for constraint in read.constraints:
                _check_parameters(constraint)
        except (TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"no requirements of a text ({error}): {text}") from error
        return read

    def dump(self) -> str:
        """Return them as JSON."""
        return json.dumps(asdict(self))

    @property
    def kinds(self) -> list[str]:
        """The kinds of the constraints."""
        return [constraint["kind"] for constraint in self.constraints]

    def faults(self, text: str) -> dict[str, str]:
        """Return what is wrong with a text by requirement: `topic`, `length`, then each kind; "" where it is met.

        Where the text is to stand in JSON, all but that is required of the text in it.
        """
        whole, as_json = text, structure.as_json.__name__
        if as_json in self.kinds:
            text = (structure.json_value(whole) or whole).strip()
        count = len(words(text))
        between = f"must have {self.low} to {self.high}"
        return {
            TOPIC: "" if forms(self.topic).search(text) else f"It does not name {self.topic}.",
            LENGTH: "" if self.low <= count <= self.high else f"It has {count} words, and {between}.",
            **{
                one["kind"]: KINDS[one["kind"]].check(whole if one["kind"] == as_json else text, **parameters_of(one))
                for one in self.constraints
            },
        }


def parameters_of(constraint: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a constraint's kind."""
    return {name: value for name, value in constraint.items() if name != "kind"}


def _check_parameters(constraint: Mapping[str, Any]) -> None:
    name = constraint["kind"]
    if name not in KINDS:
        raise ValueError(f"there is no kind of constraint {name!r}; the nearest is {nearest(name, KINDS)}")
    for parameter, values in KINDS[name].values.items():
        if not isinstance(constraint.get(parameter), type(values[0])):
            raise ValueError(f"{name} needs {parameter} such as {values[0]!r}, not {constraint.get(parameter)!r}")
    if unknown := parameters_of(constraint).keys() - KINDS[name].values.keys():
        raise ValueError(f"{name} takes no {min(unknown)}")
