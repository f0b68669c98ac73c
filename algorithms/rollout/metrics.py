"""Metrics of the env runners in a step: where the time went, and which errors there were."""

import contextlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from algorithms.rollout.agent_turns import CHANGED_PREFIXES
from algorithms.rollout.failures import Failures
from algorithms.rollout.scheduler import DispatchReport
from algorithms.rollout.types import Request, Rollout

# Names in `Rollout.counts`, as environments with tools count them.
TOOL_CALLS, FAILED_TOOL_CALLS = "tool_calls", "failed_tool_calls"
GRADING_COUNTS = ("unread", "screened", "restarts")


def completion_metrics(requests: Sequence[Request], rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Count the prompts to answer, those that were answered, and the answers that could not be judged."""
    groups = {request.group for request in requests}
    completed = len(requests) == len(rollouts)
    incomplete = groups - {rollout.group for rollout in rollouts} if not completed else set()
    verdicts = Counter(rollout.verdict for rollout in rollouts)
    return {
        "rollout/prompts_expected": float(len(groups)),
        "rollout/prompts_completed": float(len(groups) - len(incomplete)),
        "grading/timeouts": float(verdicts["timeout"]),
        "grading/errors": float(verdicts["error"]),
        "grading/ungraded": float(verdicts["ungraded"]),
        "grading/no_answer": float(verdicts["no_answer"]),
        "rollout/environment_errors": float(verdicts["environment_error"]),
        "rollout/failed_share": Failures.of(rollouts).share,
        **reward_metrics(rollouts),
        **tool_metrics(rollouts),
        **agent_metrics(rollouts),
    }


def reward_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return the mean of each reward function by its name, over the episodes of which it said something.

    Failed episodes are left out, as they are of the step.
    """
    told = [rollout.rewards for rollout in rollouts if rollout.error is None]
    names = dict.fromkeys(name for rewards in told for name in rewards)
    values = {name: [rewards[name] for rewards in told if name in rewards] for name in names}
    return {f"reward/function/{name}": sum(own) / len(own) for name, own in values.items()}


def agent_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Count the requests of agents that began another sample of their episode; empty without agents."""
    changed = [rollout.counts[CHANGED_PREFIXES] for rollout in rollouts if CHANGED_PREFIXES in rollout.counts]
    return {"rollout/changed_prefixes": float(sum(changed))} if changed else {}


def tool_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return how often the policy called tools, and how many of its calls failed; empty without tools.

    `tools/calls` is the mean of an episode, `tools/failed` the share of the calls, and `tools/used` that of the
    episodes with a call.
    """
    counted = [rollout.counts for rollout in rollouts if TOOL_CALLS in rollout.counts]
    if not counted:
        return {}
    calls = [counts[TOOL_CALLS] for counts in counted]
    failed = sum(counts.get(FAILED_TOOL_CALLS, 0) for counts in counted)
    return {
        "tools/calls": sum(calls) / len(calls),
        "tools/used": sum(count > 0 for count in calls) / len(calls),
        "tools/failed": failed / max(sum(calls), 1),
    }


class DispatchMetrics:
    """Sums over the dispatches since the last `take`."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, float] = defaultdict(float)

    def add(self, report: DispatchReport, runners: int, grading: Mapping[str, int]) -> None:
        """Count a dispatch.

        Args:
            report: of the dispatch.
            runners: that took part in it.
            grading: what the graders did meanwhile.
        """
        added = {f"grading/{kind}": float(count) for kind, count in grading.items()} | {
            "requeued": float(report.requeued),
            "stolen": float(report.stolen),
            "stale": float(report.stale),
            "wall_seconds": report.seconds,
            "runner_seconds": runners * report.seconds,
            "engine_seconds": report.engine_seconds,
        }
        for name, value in added.items():
            self._sums[name] += value

    @contextlib.contextmanager
    def forgotten(self) -> Iterator[None]:
        """Forget what the block adds."""
        kept = self._sums.copy()
        try:
            yield
        finally:
            self._sums = kept

    def take(self) -> dict[str, float]:
        """Return the metrics of what was added since the last call."""
        sums, self._sums = self._sums, defaultdict(float)
        busy = sums["engine_seconds"] / sums["runner_seconds"] if sums["runner_seconds"] else 1.0
        return {
            "throughput/idle_share": max(0.0, 1.0 - busy),
            **rollout_times(
                wall_s=sums["wall_seconds"], engine_s=sums["engine_seconds"], runner_s=sums["runner_seconds"]
            ),
            **{f"rollout/{kind}": sums[kind] for kind in ("requeued", "stolen", "stale")},
            **{f"grading/{kind}": sums[f"grading/{kind}"] for kind in GRADING_COUNTS},
        }


class GradingCounts:
    """Turns counts that only grow, one set per process, into differences since they were last read.

    The first reading of a process is its start: what it had counted by then was another run's.
    """

    def __init__(self) -> None:
        self._read: dict[int, Counter[str]] = {}

    def added(self, totals: Mapping[int, Mapping[str, int]]) -> Counter[str]:
        """Return what has been added in all processes together.

        Args:
            totals: counts by the number of the runner, of those that answered. A runner whose counts have fallen has
                a new process, which began at 0.
        """
        total: Counter[str] = Counter()
        for number, counts in totals.items():
            before = self._read.get(number)
            if before is not None:
                restarted = any(counts.get(kind, 0) < count for kind, count in before.items())
                total.update({k: n - (0 if restarted else before[k]) for k, n in counts.items()})
            self._read[number] = Counter(counts)
        return total


def rollout_times(*, wall_s: float, engine_s: float, runner_s: float) -> dict[str, float]:
    """Split the time that rollouts took.

    Args:
        wall_s: wall time.
        engine_s: in which an engine generated, added up over the runners.
        runner_s: wall time, added up over the runners.

    Returns:
        `time/generate`, a runner's mean; `time/grade`, the rest: environments and graders as far as generation does
        not hide them, and runners that wait for the last one.
    """
    generate = wall_s * min(1.0, engine_s / runner_s) if runner_s > 0 else 0.0
    return {"time/generate": generate, "time/grade": wall_s - generate}
