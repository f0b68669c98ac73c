"""ArenaRL: rank the responses of a group in a tournament, and pay by rank."""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from algorithms.config.sections import Text
from algorithms.grpo.mechanism import Group, Mechanism, Services, Settings, setting
from algorithms.grpo.rewards import rank_rewards
from algorithms.methods.functions import load_named
from algorithms.rollout.conversation import last_text
from algorithms.utils.errors import RunError
from r3env.core import Query

if TYPE_CHECKING:  # loads Ray
    from algorithms.config.base import BaseConfig

Points = tuple[float, float]
_NUMBER = re.compile(r"-?\d{1,40}(?:\.\d{1,40})?")


class ArenaRLSettings(Settings):
    """Pay responses by their rank in a tournament of their group."""

    enabled: bool = setting(True, "Whether to pay so.")
    comparator: Text = setting(
        "algorithms.methods.arena_rl:closest_number",
        "The function that compares two responses, `module:function` or `file.py:function`: from a `Query` and two "
        "texts it returns the points of both. It may ask a judge. By default the distance of the last number from the "
        "answer.",
    )


class ArenaRL(Mechanism):
    """Pays `1 - k / (N - 1)` to the response of rank k of N, in the place of the environment's reward.

    All responses meet the first one; mean points seed a bracket in which the best meet late. Of a pair, the one with
    more points goes on, the first one at a draw; without a partner it goes on by itself. Those who lose in the same
    round are ranked by the mean of all their points. That is 2(N - 1) comparisons. A penalty for length stays.

    Source: arXiv 2601.06487; the authors' code (single elimination), whose judge sees each pair in both orders and adds
    the points up, and which standardizes rewards by the sample's deviation, where advantage `std` takes the
    population's.
    """

    section = "arena_rl"
    settings_class = ArenaRLSettings
    tags = {"arena_rl/comparisons": 0.0}
    conflicts = {"ranking": "both decide what a truncated response is paid"}
    settings: ArenaRLSettings

    def __init__(self, settings: ArenaRLSettings, services: Services) -> None:
        super().__init__(settings, services)
        self.compare = load_named("arena_rl.comparator", settings.comparator)

    @classmethod
    def check(cls, settings: ArenaRLSettings, config: "BaseConfig") -> None:
        """Raise ConfigError where there is no such function."""
        load_named("arena_rl.comparator", settings.comparator)

    def is_informative(self, group: Group) -> bool:
        """Return whether the group has responses to rank, whatever the environment says of them."""
        return len(group.samples) > 1

    def rewards(self, group: Group) -> None:
        """Pay the group's responses by their ranks."""
        if len(group.samples) < 2:
            return
        query = self.services.posed(group.prompt)
        texts = [last_text(sample.rollout, self.services.tokenizer) for sample in group.samples]

        def play(first: int, second: int) -> Points:
            self.metrics["arena_rl/comparisons"] += 1.0
            return self._points(self.compare(query, texts[first], texts[second]))

        ranks = np.argsort(tournament(len(texts), play))
        for sample, reward in zip(group.samples, rank_rewards(ranks), strict=True):
            sample.shaped_reward = float(reward) + sample.length_penalty

    def _points(self, found: Any) -> Points:
        try:
            first, second = (float(points) for points in found)
        except (TypeError, ValueError):
            first = second = np.nan
        if not np.isfinite([first, second]).all():
            raise RunError(
                f"arena_rl.comparator: {self.settings.comparator} returned {str(found)[:60]}; fix: return the points "
                "of both responses, two numbers"
            )
        return first, second


def tournament(count: int, play: Callable[[int, int], Points]) -> list[int]:
    """Return players, numbers below `count`, from the first rank to the last; `play` gives the points of two."""
    points: list[list[float]] = [[] for _ in range(count)]
    against_first = []
    for player in range(1, count):
        own, first = play(player, 0)
        points[player].append(own)
        against_first.append(first)
    points[0].append(float(np.mean(against_first)) if against_first else 0.0)

    def by_points(players: Sequence[int]) -> list[int]:
        return sorted(players, key=lambda player: -np.mean(points[player]))

    seeded = by_points(range(count))
    active, losers = [seeded[place] for place in bracket(count)], []
    while len(active) > 1:
        on, out = active[len(active) // 2 * 2 :], []  # whoever has no partner is first in the next round
        for first, second in zip(active[::2], active[1::2], strict=False):
            scores = play(first, second)
            points[first].append(scores[0])
            points[second].append(scores[1])
            winner, loser = (first, second) if scores[0] >= scores[1] else (second, first)
            on.append(winner)
            out.append(loser)
        active = on
        losers.append(out)
    return [*active, *(player for out in reversed(losers) for player in by_points(out))]


def bracket(count: int) -> list[int]:
    """Return seeds in the order in which neighbors meet: of a power of two, the best two could meet last.

    Of other counts the places of further seeds are left out, as in the authors' code.
    """
    places = [0]
    while len(places) < count:
        places = [place for seed in places for place in (seed, 2 * len(places) - 1 - seed)]
    return [place for place in places if place < count]


def closest_number(query: Query, first: str, second: str) -> Points:
    """Give each text `1 / (1 + distance)` points, of its last number from that of the query's answer; 0 without one.

    An answer without a number has nothing to compare with: both get 0.
    """
    target = _last_number(query.answer)
    distances = np.abs([_last_number(first) - target, _last_number(second) - target])
    one, other = np.nan_to_num(1.0 / (1.0 + distances))
    return float(one), float(other)


def _last_number(text: str) -> float:
    return float((_NUMBER.findall(text) or ["nan"])[-1])
