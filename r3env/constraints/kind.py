"""What a kind of constraint is, and the list of all kinds."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Check = Callable[..., str]
KINDS: dict[str, "Kind"] = {}
SPLITS = ("train", "development", "heldout")


@dataclass(frozen=True)
class Kind:
    """A kind of constraint.

    Args:
        name: Of the kind.
        wordings: Of each split, ways to state it, as formats of its parameters; no two splits share one.
        values: What each parameter may be.
        check: Called with the text and the parameters; returns what is wrong in words, "" where nothing is.
        shape: Called with a draft and the parameters; changes it so that its text meets the constraint.
    """

    name: str
    wordings: Mapping[str, Sequence[str]]
    values: Mapping[str, Sequence[Any]]
    check: Check
    shape: Callable[..., None]

    def draw(self, rng: random.Random) -> dict[str, Any]:
        """Return parameters."""
        return {name: rng.choice(values) for name, values in self.values.items()}

    def state(self, split: str, rng: random.Random, parameters: Mapping[str, Any]) -> str:
        """Return the sentence that states the constraint in a prompt of this split."""
        return rng.choice(self.wordings[split]).format(**parameters)


def kind(
    train: Sequence[str], development: str, heldout: str, shape: Callable[..., None], **values: Sequence[Any]
) -> Callable[[Check], Check]:
    """Make a kind of a function that checks it, under the function's name."""

    def register(check: Check) -> Check:
        wordings = {"train": tuple(train), "development": (development,), "heldout": (heldout,)}
        KINDS[check.__name__] = Kind(check.__name__, wordings, values, check, shape)
        return check

    return register


def count_fault(found: int, wanted: int, what: str) -> str:
    """Return what is wrong with a number of things, "" where it is the wanted one."""
    return "" if found == wanted else f"It has {found} {what}, not {wanted}."
