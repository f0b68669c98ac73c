"""One simulated env runner: a simulated engine, and rollouts of the real sizes made from its completions."""

import asyncio
import time
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from algorithms.rollout.engines.base import Completion, FinishReason, GenerationRequest
from algorithms.rollout.types import Request, Rollout, RunnerReport, Turn, Written
from benchmarks.simulation.engine import Latency, Lengths, ModelClock, SimulatedEngine

PROMPT_TOKENS = 256
# How likely an answer is right differs by query: with these, some groups come out all right or all wrong.
CHANCES = (0.0, 0.05, 0.3, 0.6, 0.95)
# How often a waiting call looks whether everything has ended, within its time.
LOOKS = 8


class RunnerDied(RuntimeError):
    """Raised by a runner whose simulated process has died."""


@dataclass(frozen=True)
class RunnerSpec:
    """The settings of a simulated runner.

    Args:
        max_num_seqs: decoding batch of the engine.
        dies_after_s: modeled seconds after `arm` at which the process dies; None: never.
        restart_s: modeled seconds that a new process takes to be ready.
        payload: share of each response's tokens that its rollout really carries, for machines with little memory.
    """

    latency: Latency = field(default_factory=Latency)
    lengths: Lengths = field(default_factory=Lengths)
    max_num_seqs: int = 256
    dies_after_s: float | None = None
    restart_s: float = 60.0
    payload: float = 1.0


class SimulatedRunner:
    """Has `advance` and the weights' version, as an LLMEnvRunner has, without model, tokenizer and environments."""

    def __init__(self, spec: RunnerSpec, clock: ModelClock) -> None:
        self.spec, self.clock = spec, clock
        self.engine = SimulatedEngine(spec.latency, spec.lengths, max_num_seqs=spec.max_num_seqs, clock=clock)
        self._requests: dict[int, Request] = {}
        self._one_call_at_a_time = asyncio.Lock()
        self._dies_at = float("inf")

    def arm(self) -> None:
        """Start to count the time until the process dies."""
        if self.spec.dies_after_s is not None:
            self._dies_at = self.clock.now() + self.spec.dies_after_s

    def require_alive(self) -> None:
        """Raise once the process has died."""
        if self.clock.now() >= self._dies_at:
            raise RunnerDied("the simulated process was killed")

    async def advance(self, requests: Sequence[Request], withdraw: Collection[int], seconds: float) -> RunnerReport:
        """Advance like `LLMEnvRunner.advance`; `seconds` are real ones."""
        async with self._one_call_at_a_time:
            self.require_alive()
            busy = self.engine.usage.busy_s
            self._take(requests, withdraw)
            ended = await self._ended_within(seconds)
            rollouts = tuple(self._rollout(self._requests.pop(key), completion) for key, completion in ended)
            return RunnerReport(
                rollouts=rollouts,
                unfinished=self.engine.unfinished,
                generated_tokens=sum(len(completion.tokens) for _, completion in ended),
                engine_seconds=(self.engine.usage.busy_s - busy) / self.clock.speed,
            )

    def _take(self, requests: Sequence[Request], withdraw: Collection[int]) -> None:
        self.engine.abort(withdraw)
        for key in withdraw:
            self._requests.pop(key, None)
        for request in requests:
            self._requests[request.id] = request
            prompt = _prompt(request.uid)
            self.engine.submit(request.id, GenerationRequest(prompt, request.seed, request.sampling))

    async def _ended_within(self, seconds: float) -> list[tuple[int, Completion]]:
        deadline = time.monotonic() + seconds
        ended = self.engine.catch_up()
        while self.engine.unfinished and (left := deadline - time.monotonic()) > 0:
            await asyncio.sleep(min(left, max(self.engine.next_end_s(), seconds / LOOKS, 0.005)))
            self.require_alive()
            ended += self.engine.catch_up()
        return ended

    def _rollout(self, request: Request, completion: Completion) -> Rollout:
        carried = max(1, round(len(completion.tokens) * self.spec.payload))
        prompt = _prompt(request.uid)
        mask = np.ones(len(prompt) + carried, bool)
        mask[: len(prompt)] = False
        truncated = completion.finish_reason is FinishReason.LENGTH
        correct = (
            not truncated and _chance(str(request.seed)) < CHANCES[zlib.crc32(request.uid.encode()) % len(CHANCES)]
        )
        return Rollout(
            request_id=request.id,
            uid=request.uid,
            group=request.group,
            context=request.context,
            tokens=np.concatenate([prompt, completion.tokens[:carried]]),
            loss_mask=mask,
            sampling_logprobs=completion.logprobs[:carried],
            reward=float(correct),
            correct=correct,
            truncated=truncated,
            verdict="equal" if correct else "different",
            weights_version=self.engine.weights_version,
            messages=({"role": "user", "content": request.uid}, Written(len(prompt), len(mask))),
            turns=(Turn(len(prompt), len(mask), float(correct), correct),),
        )


class SimulatedHost:
    """A Ray actor that hosts many runners, with one modeled clock.

    Args:
        specs: of its runners, by their index here.
        speed: modeled seconds in a real one.
    """

    def __init__(self, specs: Sequence[RunnerSpec], speed: float) -> None:
        self.clock = ModelClock(speed)
        self.runners = [SimulatedRunner(spec, self.clock) for spec in specs]
        self._starting: dict[int, asyncio.Task[None]] = {}
        self._lives = [1] * len(specs)
        self._past = {"busy_s": 0.0, "sequence_s": 0.0, "tokens": 0.0}

    async def advance(
        self, index: int, requests: Sequence[Request], withdraw: Collection[int], seconds: float
    ) -> RunnerReport:
        """Advance one of its runners."""
        return await self.runners[index].advance(requests, withdraw, seconds)

    async def set_state(self, index: int, state: Mapping[str, int]) -> int:
        """Set the version of the weights; a process that is still starting replies when it has started."""
        if index in self._starting:
            await self._starting[index]
        runner = self.runners[index]
        (version,) = state.values()
        runner.require_alive()
        runner.engine.load_weights({}, version)
        return runner.engine.weights_version

    async def get_pid(self, index: int) -> int:
        """Return a runner's process number; one that is still starting replies when it has started."""
        if index in self._starting:
            await self._starting[index]
        self.runners[index].require_alive()
        return self._lives[index]

    async def restart(self, index: int) -> None:
        """Replace a runner by a new one that does not die."""
        self._lives[index] += 1
        self._starting[index] = asyncio.create_task(self._restart(index))

    async def get_grading_counts(self, index: int) -> dict[str, int]:
        """Return no counts: there are no graders."""
        return {}

    async def arm(self) -> None:
        """Start the clock of the runners that are to die."""
        for runner in self.runners:
            runner.arm()

    async def set_speed(self, speed: float) -> None:
        """Change the speed of modeled time."""
        self.clock.set_speed(speed)

    async def usage(self) -> dict[str, float]:
        """Return modeled time, and the sums over all engines so far, see `Usage`."""
        total = dict(self._past)
        for runner in self.runners:
            runner.engine.abort([])  # lets its time pass up to now
            for name in total:
                total[name] += getattr(runner.engine.usage, name)
        return total | {"now": self.clock.now()}

    async def _restart(self, index: int) -> None:
        gone = self.runners[index]
        for name in self._past:
            self._past[name] += getattr(gone.engine.usage, name)
        self.runners[index] = SimulatedRunner(replace(gone.spec, dies_after_s=None), self.clock)
        await asyncio.sleep(gone.spec.restart_s / self.clock.speed)
        del self._starting[index]


def _prompt(uid: str) -> np.ndarray:
    """Return int32 [PROMPT_TOKENS], different for each query."""
    tokens = np.full(PROMPT_TOKENS, 5, np.int32)
    tokens[:2] = np.frombuffer(zlib.crc32(uid.encode()).to_bytes(4, "little"), np.uint16)
    return tokens


def _chance(name: str) -> float:
    return zlib.crc32(name.encode()) / 2**32


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
