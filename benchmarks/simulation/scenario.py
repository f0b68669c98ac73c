"""One line of the scale benchmark: engines, responses, and faults."""

from dataclasses import dataclass, replace

from benchmarks.simulation.engine import Latency, Lengths
from benchmarks.simulation.runner import RunnerSpec

MAX_NUM_SEQS = 256
GROUP_SIZE = 16
# When in the rollouts the first engine dies; further ones follow at this distance.
DEATHS_BEGIN, DEATHS_APART = 0.3, 0.02
RESTART_S = 120.0


@dataclass(frozen=True)
class Scenario:
    """A step to simulate.

    Args:
        wall_s: real seconds that its rollouts should take.
        payload: see `RunnerSpec`.
        slow: engines that are `slowdown` times slower.
        deaths: engines whose process dies in the middle of the step.
        learner_share: modeled seconds of the learner, as a share of what the rollouts ideally take.
        lag: `training.max_off_policy_steps`.
        warm_up: a step goes ahead, of the same queries, which is not measured.
        steps: that are measured, one after another; the figures are means.
        whole: whether engines count as idle while the learner works and nothing is rolled out.
    """

    name: str
    engines: int
    responses: int
    latency: Latency
    lengths: Lengths
    wall_s: float
    payload: float = 1.0
    slow: int = 0
    slowdown: float = 1.0
    deaths: int = 0
    longest_first: bool = True
    stealing: bool = True
    learner_share: float = 0.0
    lag: int = 0
    warm_up: bool = False
    steps: int = 1
    whole: bool = False

    @property
    def slots(self) -> int:
        """Sequences that an engine decodes at once: its share of the responses, if that is less than a batch."""
        return min(MAX_NUM_SEQS, -(-self.responses // self.engines))

    @property
    def ideal_s(self) -> float:
        """Modeled seconds of the rollouts if every engine had a full batch to the end."""
        rate = self.slots / self.latency.seconds_per_token(self.slots)
        slow_rate = rate / self.slowdown
        return self.responses * self.lengths.mean / ((self.engines - self.slow) * rate + self.slow * slow_rate)

    @property
    def learner_s(self) -> float:
        """Modeled seconds of the learner."""
        return self.learner_share * self.ideal_s

    @property
    def speed(self) -> float:
        """Modeled seconds in a real one."""
        return self.ideal_s / self.wall_s

    @property
    def queries(self) -> int:
        """Queries of a step."""
        return max(1, self.responses // GROUP_SIZE)

    def specs(self) -> list[RunnerSpec]:
        """Return one for each engine."""
        usual = RunnerSpec(self.latency, self.lengths, self.slots, restart_s=RESTART_S, payload=self.payload)
        specs = [usual] * self.engines
        for number in range(self.slow):
            specs[-1 - number] = replace(usual, latency=replace(self.latency, slowdown=self.slowdown))
        for number in range(self.deaths):
            at = self.ideal_s * (DEATHS_BEGIN + DEATHS_APART * number)
            specs[number] = replace(specs[number], dies_after_s=at)
        return specs
