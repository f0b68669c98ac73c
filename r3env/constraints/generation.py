"""Generate prompts whose requirements some text meets."""

import random
from dataclasses import dataclass

from r3env.constraints.draft import Draft
from r3env.constraints.kind import KINDS
from r3env.constraints.requirements import Requirements, parameters_of
from r3env.queries import Query

TOPICS = {
    "train": (
        "bees castles rivers bread coffee lighthouses owls trains volcanoes gardens whales pianos deserts robots "
        "bicycles glaciers kites libraries mountains penguins pirates potatoes rainbows sailors snow spiders stars "
        "strawberries submarines tea tigers tomatoes tortoises towers turtles umbrellas violins wallets zebras chess"
    ).split(),
    "development": (
        "apples bridges camels clocks clouds crows drums elephants forests horses islands lemons mirrors museums "
        "onions oranges parrots rockets salt shoes"
    ).split(),
    "heldout": (
        "anchors ants balloons bats books caves cheese comets corn cats dolphins eagles fire flutes foxes frogs goats "
        "guitars honey kitchens ladders lions maps markets moths oceans pencils rice roses sand ships silk storms "
        "swans tents theaters tunnels wheels windmills windows"
    ).split(),
}

OPENINGS = {
    "train": ("Write a short text about {topic}.", "Write something about {topic}."),
    "development": ("Describe {topic} briefly.",),
    "heldout": ("Compose a brief piece on {topic}.",),
}

REQUIREMENTS = {
    "train": (
        "Mention {topic} by name and use {low} to {high} words.",
        "Use between {low} and {high} words, one of them the name of the topic.",
    ),
    "development": ("It needs {low} to {high} words and has to name {topic}.",),
    "heldout": ("Its length must be from {low} to {high} words, and the word for its topic must be in it.",),
}

_LOW, _MORE = (6, 8, 10), (15, 20, 30)
_DRAFTS, _TRIES = 12, 2000


@dataclass(frozen=True)
class Problems:
    """Which prompts to generate.

    Args:
        split: `train`, `development` or `heldout`; no two share a topic or a wording.
        seed: Other prompts for every seed.
        size: How many.
        level: Constraints in each, besides the topic and the length.
        kinds: Kinds of constraint that they are taken from.
    """

    split: str
    seed: int
    size: int
    level: int
    kinds: tuple[str, ...]

    def generate(self) -> list[Query]:
        """Return the prompts, no two of the same text; the kinds take turns.

        Raises:
            ValueError: There are not so many, as of few kinds or kinds that exclude each other.
        """
        rng = random.Random(f"{self.split}/{self.seed}/{self.level}/{','.join(self.kinds)}")
        turns: list[str] = []
        found: dict[str, Query] = {}
        for _ in range(_TRIES + 20 * self.size):
            if len(found) == self.size:
                break
            turns = turns or rng.sample(self.kinds, len(self.kinds))
            query = self._draw(rng, turns[-1], len(found))
            if query is not None and query.problem not in found:
                found[query.problem] = query
                turns.pop()
        else:
            raise ValueError(f"size: only {len(found)} of {self.size} prompts found; fix: a smaller size or level")
        return list(found.values())

    def _draw(self, rng: random.Random, first: str, number: int) -> Query | None:
        """Return a prompt with a constraint of this kind; None where no text was found that meets it."""
        others = [name for name in self.kinds if name != first]
        names = rng.sample([first, *rng.sample(others, self.level - 1)], self.level)
        low = rng.choice(_LOW)
        chosen = [{"kind": name, **KINDS[name].draw(rng)} for name in names]
        wanted = Requirements(rng.choice(TOPICS[self.split]), low, low + rng.choice(_MORE), chosen)
        text = write_text(wanted, rng)
        if text is None:
            return None
        frame = {"topic": wanted.topic, "low": wanted.low, "high": wanted.high}
        stated = [KINDS[one["kind"]].state(self.split, rng, parameters_of(one)) for one in chosen]
        ways = OPENINGS[self.split], REQUIREMENTS[self.split]
        problem = " ".join([*(rng.choice(way).format(**frame) for way in ways), *stated])
        uid = f"{self.split}/{self.seed}/level{self.level}/{number}"
        level = first if self.level == 1 else str(self.level)
        return Query(uid, problem, wanted.dump(), level, {"kinds": names, "reference": text})


def write_text(wanted: Requirements, rng: random.Random) -> str | None:
    """Return a text that meets the requirements, or None where no draft does: they may exclude each other."""
    for _ in range(_DRAFTS):
        draft = Draft(wanted.topic, rng.randint(wanted.low, wanted.high))
        for constraint in wanted.constraints:
            KINDS[constraint["kind"]].shape(draft, **parameters_of(constraint))
        text = draft.write(rng)
        if not any(wanted.faults(text).values()):
            return text
    return None
