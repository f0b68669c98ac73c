"""Count failed episodes and calls of tools, name the most frequent error, and report when it is too many. No Ray here.

An episode fails when its environment, its agent or its verifier raises or runs out of time: nothing is known of the
response. Training leaves it out, an evaluation counts it as incorrect.
"""

import math
import re
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import r3env
from algorithms.rollout.types import Rollout
from algorithms.utils.errors import RunError
from algorithms.utils.progress import percent
from r3env.child_processes.subprocess_scorer import WAITED
from r3env.core import Reason
from r3env.named_functions import of_library
from r3env.printable import printable

# What differs between errors of one kind: what is quoted, addresses, and numbers that are not the line of a file.
_VARIES = re.compile(r"'[^']*'|\"[^\"]*\"|\b0x[0-9a-fA-F]+|(?<!line )\b\d[\d.]*")
_LONGEST_ERROR = 400
# Of the error of a conversation that is longer than its engine can hold.
NO_ROOM = "leave no room in a context of"
# A handful of answers may all be hard to grade.
FEWEST_TIMEOUTS = 16
_OURS = (Path(__file__).parents[1], Path(r3env.__file__).parent)


class EpisodesFailed(RunError):
    """Too many episodes of a step, or all of an evaluation, failed: there is little to learn from."""


@dataclass(frozen=True)
class Failures:
    """The failed ones among some episodes, or among some calls of a tool.

    Args:
        total: all of them.
        kinds: the first error of each kind and how often the kind occurred, the most frequent first. Errors that differ
            only in numbers and quoted text are of one kind.
        timeouts: how many were a verifier's timeouts.
        what: they are, for people.
    """

    total: int
    kinds: tuple[tuple[str, int], ...]
    timeouts: int = 0
    what: str = "episodes"

    @classmethod
    def of(cls, rollouts: Sequence[Rollout]) -> "Failures":
        """Count the failed ones among some rollouts; those that were declined to be graded only if all were."""
        rollouts = [rollout for rollout in rollouts if rollout.verdict != Reason.UNGRADED] or rollouts
        kinds = count_kinds(rollout.error for rollout in rollouts if rollout.error is not None)
        return cls(len(rollouts), kinds, sum(rollout.verdict == Reason.TIMEOUT for rollout in rollouts))

    @property
    def failed(self) -> int:
        """How many failed."""
        return sum(count for _, count in self.kinds)

    @property
    def share(self) -> float:
        """The share that failed; 0 of nothing."""
        return self.failed / max(self.total, 1)

    def __str__(self) -> str:
        """Say how many failed, and name the most frequent error."""
        error, count = self.kinds[0]
        of_them = "" if count == self.failed else f", {count} of them with"
        return f"{self.failed} of {self.total} {self.what} failed ({percent(self.share)}){of_them}: {one_line(error)}"

    @property
    def may_be_hard_answers(self) -> bool:
        """Whether they are few and nothing but timeouts: no sign of a broken environment."""
        return self.failed == self.timeouts and self.total < FEWEST_TIMEOUTS

    @property
    def fix(self) -> str:
        """What to do against the most frequent error."""
        if WAITED in self.kinds[0][0]:
            return (
                "start threads, clients and models in the function, or hold them in env_runners.reward_actor; for a "
                "slow server raise environment.grading_timeout_s"
            )
        if NO_ROOM in self.kinds[0][0]:
            return (
                "set env_runners.max_model_len, if vLLM was started with less than the model's context, or let the "
                "environment say less, in fewer turns: environment.max_turns, environment.options"
            )
        if 2 * self.timeouts > self.failed:
            return "make the verifier quicker, or raise environment.grading_timeout_s"
        return (
            "correct the environment of environment.id, or the function of its environment.options.reward; "
            "`python -m r3env.inspect --env ID --gold` runs it by itself"
        )


def count_kinds(errors: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """Return the first error of each kind and how often the kind occurred, the most frequent first."""
    first: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for error in errors:
        kind = kind_of(error)
        first.setdefault(kind, error)
        counts[kind] += 1
    return tuple((first[kind], count) for kind, count in counts.most_common())


def kind_of(error: str) -> str:
    """Return what errors of one kind have in common: the text without its numbers and quoted parts."""
    return _VARIES.sub("…", error)


def describe_error(where: str, error: BaseException) -> str:
    """Describe what an environment raised: in which call, the exception, and the line of the user's code.

    Args:
        where: `make`, `reset` or `step`.
        error: what was raised.
    """
    text = f"{where}: {' '.join(repr(error).split())}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    own = [frame for frame in frames if not of_library(frame.filename)] or frames
    return f"{text} ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else text


class FailureLimit:
    """Ends training when a step loses too many episodes.

    The answers of a small step may all be hard to grade: steps that lose too many to timeouts alone are judged
    together, once there are 16 episodes.
    """

    def __init__(self, most: float) -> None:
        """Set the share that a step may lose, as `env_runners.max_failed_share`; a step that loses all is too much."""
        self._most = most
        self._unsure: list[Rollout] = []

    def check(self, rollouts: Sequence[Rollout]) -> None:
        """Take note of a step's episodes.

        Raises:
            EpisodesFailed: too many failed; with the most frequent error and the fix.
        """
        unjudged = [*self._unsure, *rollouts]
        failures = Failures.of(unjudged)
        self._unsure = []
        if not failures.kinds or (failures.share <= self._most and failures.failed < failures.total):
            return
        if failures.may_be_hard_answers:
            self._unsure = unjudged
        elif failures.failed == failures.total:
            raise EpisodesFailed(_all_failed(failures))
        else:
            raise EpisodesFailed(
                f"env_runners.max_failed_share: {failures}; fix: {failures.fix}; "
                f"more than {percent(self._most)} of a step ends the run (1: only a step in which all fail)"
            )


def refuse_if_all_failed(rollouts: Sequence[Rollout]) -> None:
    """Raise if every episode of an evaluation failed: then it has measured nothing.

    Timeouts alone count from 16 episodes on.

    Raises:
        EpisodesFailed: with the most frequent error and the fix.
    """
    failures = Failures.of(rollouts)
    if failures.kinds and failures.failed == failures.total and not failures.may_be_hard_answers:
        raise EpisodesFailed(_all_failed(failures))


def _all_failed(failures: Failures) -> str:
    return f"every one of {failures.total} episodes failed: {one_line(failures.kinds[0][0])}; fix: {failures.fix}"


class FailureWatch:
    """Warns of failed episodes in one line.

    It warns of the first ones, of errors of another kind, and when their share has changed by more than chance does.

    Args:
        whose: whose episodes they are, to begin the line.
        then: what becomes of them, to end it.
    """

    LEAST_CHANGE = 0.1
    STANDARD_ERRORS = 2.0
    MOST_KINDS, MOST_NAMED = 20, 3

    def __init__(self, whose: str, then: str) -> None:
        self._whose, self._then = whose, then
        self._share = 0.0
        self._told: set[str] = set()

    def observe(self, rollouts: Sequence[Rollout]) -> str | None:
        """Take note of some episodes; return the warning when it is due."""
        failures = Failures.of(rollouts)
        rose = self._rose(failures)
        new = [error for error, _ in failures.kinds if kind_of(error) not in self._told]
        new = new[: self.MOST_KINDS - len(self._told)]
        self._told.update(map(kind_of, new))
        if not failures.kinds or not (rose or new):
            return None
        others = [one_line(error) for error in new if error != failures.kinds[0][0]]
        also = "".join(f"; also: {error}" for error in others[: self.MOST_NAMED])
        more = f"; and {len(others) - self.MOST_NAMED} other errors" if len(others) > self.MOST_NAMED else ""
        return f"{self._whose}: {failures}{also}{more}. {self._then}"

    def _rose(self, failures: Failures) -> bool:
        """Follow the share where it has changed by more than chance does; return whether it went up."""
        before, likely = self._share, max(failures.share, self._share)
        noise = math.sqrt(likely * (1.0 - likely) / max(failures.total, 1))
        changed = abs(failures.share - before) > max(self.LEAST_CHANGE, self.STANDARD_ERRORS * noise)
        if changed or not self._told:
            self._share = failures.share
        return changed and failures.share > before


class ToolWatch:
    """Warns in one line of the tool with the most failures if most of its calls fail, or else of all tools together.

    It warns at once, and again when another tool or error is the most frequent, or after `AGAIN_AFTER` steps.

    Args:
        whose: whose calls they are, to begin the line; empty: training's.
    """

    SHARE, FEWEST_CALLS, AGAIN_AFTER = 0.5, 4, 50

    def __init__(self, whose: str = "") -> None:
        self._begin = f"{whose}: tools" if whose else "tools"
        self._steps = 0
        self._told: dict[tuple[str, str], int] = {}

    def observe(self, rollouts: Sequence[Rollout]) -> str | None:
        """Take note of a step's episodes; return the warning when it is due."""
        self._steps += 1
        worst = self._worst([call for rollout in rollouts for call in rollout.calls])
        if worst is None:
            return None
        key = worst.what, kind_of(worst.kinds[0][0])
        if self._steps - self._told.get(key, -self.AGAIN_AFTER) < self.AGAIN_AFTER:
            return None
        self._told[key] = self._steps
        return (
            f"{self._begin}: {worst}. The policy reads the error as the result (tools/failed); fix: call the tool by "
            "itself, or start its server again"
        )

    def _worst(self, calls: Sequence[tuple[str, str]]) -> Failures | None:
        names = list(dict.fromkeys(name for name, _ in calls))
        each = [_among([call for call in calls if call[0] == name], name) for name in names]
        failing = [one for one in each if self._mostly_fails(one)]
        if failing:
            return max(failing, key=lambda one: one.failed)
        together = _among(calls, "all tools")
        return together if self._mostly_fails(together) else None

    def _mostly_fails(self, found: Failures) -> bool:
        return found.total >= self.FEWEST_CALLS and found.share > self.SHARE


def _among(calls: Sequence[tuple[str, str]], whose: str) -> Failures:
    """Count the failed ones among some calls, each a tool's name and its error."""
    return Failures(len(calls), count_kinds(error for _, error in calls if error), what=f"calls of {whose}")


def one_line(error: str) -> str:
    """Return an error in one line, of a long one the beginning."""
    line = printable(" ".join(error.split()))
    return line if len(line) <= _LONGEST_ERROR else f"{line[:_LONGEST_ERROR]}…"


def _is_ours(file: str) -> bool:
    return file.startswith("<") or any(folder in Path(file).parents for folder in _OURS)
