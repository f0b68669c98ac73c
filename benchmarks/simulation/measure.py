"""Measure the driver's process while it runs a scenario."""

import contextlib
import dataclasses
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._private.internal_api import node_stats

from algorithms.grpo import algorithm as grpo_algorithm
from algorithms.models.names import resolve_model
from algorithms.models.tokenizer import load_tokenizer
from algorithms.preflight.ray_session import start_ray
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.rollout import scheduler as dispatch_module
from algorithms.rollout.env_runner import LLMEnvRunner
from algorithms.rollout.scheduler import DispatchPlan
from benchmarks.simulation.engine import ModelClock, SimulatedEngine
from benchmarks.simulation.runner import GROUP_SIZE, Scenario
from benchmarks.simulation.step import MeasuredStep, SimulatedGroup, build


@contextlib.contextmanager
def real_group(scenario: Scenario) -> Iterator[tuple[MeasuredStep, int]]:
    """Yield an algorithm over real actors, and the responses of its step."""
    config = (
        R3GRPOConfig(algo_class=MeasuredStep)
        .environment("benchmarks.simulation.step:ManyQueries-v0", env_config={"count": scenario.queries})
        .rl_module(model="embedded:tiny")
        .env_runners(
            num_env_runners=scenario.engines,
            num_cpus_per_env_runner=0.1,
            max_response_tokens=scenario.lengths.limit,
            max_num_seqs=scenario.slots,
            env_runner_cls=_runner_class(scenario),
        )
        .training(lr=1e-6, group_size=GROUP_SIZE, queries_per_step=scenario.queries, minibatches=1)
        .debugging(seed=1)
    )
    start_ray(config)
    algorithm: Any = config.build_checked()  # unchecked: the responses only say that they are as long
    try:
        plan = DispatchPlan.of(continuous_batching=True, max_num_seqs=scenario.slots)
        algorithm.rollout_workers.stream.dispatch.plan = plan
        algorithm.learner_s = scenario.learner_s / scenario.speed
        grpo_algorithm.update_learners = algorithm.modeled_update
        yield algorithm, scenario.queries * GROUP_SIZE
    finally:
        algorithm.stop()


def _runner_class(scenario: Scenario) -> type[LLMEnvRunner]:
    class SimulatedEnvRunner(LLMEnvRunner):
        """An LLMEnvRunner whose engine has no model."""

        def make_module(self) -> None:
            """Start the simulated engine and load the tokenizer."""
            module = self.config.rl_module_settings
            self.tokenizer = load_tokenizer(resolve_model(module.model), module.revision, module.trust_remote_code)
            self.engine = SimulatedEngine(
                scenario.latency, scenario.lengths, max_num_seqs=scenario.slots, clock=ModelClock(scenario.speed)
            )

    return SimulatedEnvRunner


PER_HOST = 64
SAMPLE_S = 0.25
AFTER_COLLECTION = (
    "score_tokens",
    "shape_rewards",
    "compose_groups",
    "compute_advantages",
    "update_policy",
    "update_history",
)


@dataclass(frozen=True)
class Figures:
    """One line of the result; seconds are modeled ones unless they are CPU seconds of the driver.

    Args:
        step_s: modeled seconds of the whole step.
        collect_us, after_us: CPU microseconds of the driver for each response: while rollouts are collected, and in the
            stages after that.
        cpu_share: CPU seconds of the driver, as a share of the step's modeled seconds.
        idle: share of the engines' time without a single sequence, until the last response was there.
        occupancy: mean share of the slots of all engines that decode, until then.
        heap_gb, shared_gb: most memory of the driver's process: its own, and what it shares with the object store.
        base_gb: of the former, what the process had before it rolled anything out.
        store_gb: most bytes of objects in Ray's object store, seen by the driver or not.
        kb_a_response: the most that own memory beyond `base_gb` and the object store took together, in kB.
    """

    name: str
    engines: int
    responses: int
    step_s: float
    collect_us: float
    after_us: float | None
    cpu_share: float
    idle: float | None
    occupancy: float | None
    heap_gb: float
    shared_gb: float
    base_gb: float
    store_gb: float
    kb_a_response: float
    stolen: float | None = None
    requeued: float | None = None
    restarts: float | None = None
    stages_us: dict[str, float] | None = None

    @classmethod
    def columns(cls) -> list[str]:
        """Return the cells of the table."""
        return [field.name for field in dataclasses.fields(cls) if field.name != "stages_us"]

    def as_row(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return dataclasses.asdict(self)


class Memory:
    """The most memory that the process and the object store had, sampled in a thread."""

    def __init__(self) -> None:
        self.base = self.heap = self.shared = self.store = self.together = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "Memory":
        self.base = self._own(psutil.Process())
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def of(self, responses: int) -> dict[str, Any]:
        """Return them as fields of `Figures`."""
        return {
            "heap_gb": self.heap / 1e9,
            "shared_gb": self.shared / 1e9,
            "base_gb": self.base / 1e9,
            "store_gb": self.store / 1e9,
            "kb_a_response": (self.together - self.base) / responses / 1e3,
        }

    def _watch(self) -> None:
        process = psutil.Process()
        while not self._stop.wait(SAMPLE_S):
            own, store = self._own(process), _object_store_bytes()
            self.heap, self.shared = max(self.heap, own), max(self.shared, process.memory_info().shared)
            self.store, self.together = max(self.store, store), max(self.together, own + store)

    @staticmethod
    def _own(process: psutil.Process) -> int:
        memory = process.memory_info()
        return int(memory.rss - memory.shared)


def _object_store_bytes() -> int:
    """Return the bytes of objects in this machine's object store, as its raylet counts them."""
    node: Any = ray._private.worker.global_worker.node
    address, port = node.node_ip_address, node.node_manager_port
    return int(node_stats(address, port, include_memory_info=False).store_stats.object_store_bytes_used)


def measure_step(scenario: Scenario) -> Figures:
    """Measure a whole step; where it matters after a first one, from which the driver knows the lengths."""
    with _simulated(scenario) as (algorithm, group), _stealing(scenario.stealing), Memory() as memory:
        for _ in range((scenario.lag or 1) if scenario.warm_up else 0):
            algorithm.training_step()
        group.arm()
        started, cpu, before = group.usage(), time.process_time(), time.monotonic()
        restarts = algorithm.rollout_workers.restarts
        for _ in range(scenario.steps):
            algorithm.training_step()
        cpu = (time.process_time() - cpu) / scenario.steps
        modeled = (time.monotonic() - before) * scenario.speed / scenario.steps
        record, used = algorithm.batch.record, group.usage()
    only_rollouts = not (scenario.whole or scenario.lag)
    collecting = record["time/collect_rollouts"] * scenario.speed if only_rollouts else used["now"] - started["now"]
    engine_s = collecting * scenario.engines
    stages = {name: 1e6 * algorithm.cpu_seconds[name] / scenario.responses for name in AFTER_COLLECTION}
    after = sum(stages.values())
    return Figures(
        name=scenario.name,
        engines=scenario.engines,
        responses=scenario.responses,
        step_s=modeled,
        collect_us=1e6 * cpu / scenario.responses - after,
        after_us=after if not scenario.lag else None,
        cpu_share=cpu / modeled,
        idle=1 - (used["busy_s"] - started["busy_s"]) / engine_s,
        occupancy=(used["sequence_s"] - started["sequence_s"]) / engine_s / scenario.slots,
        **memory.of(scenario.responses),
        stolen=record["rollout/stolen"],
        requeued=record["rollout/requeued"],
        restarts=float(algorithm.rollout_workers.restarts - restarts),
        stages_us=stages,
    )


def measure_steady(scenario: Scenario, *, settle_s: float, seconds: float) -> Figures:
    """Measure the middle of a step at real speed: fast until responses end at their usual rate, then in real time."""
    with _simulated(scenario) as (algorithm, group), Memory() as memory:
        algorithm.rollout_workers.start(algorithm.source._begin(0).requests)
        time.sleep(scenario.wall_s * 0.3)
        group.set_speed(1.0)
        time.sleep(settle_s)
        before, cpu, started = group.usage(), time.process_time(), time.monotonic()
        time.sleep(seconds)
        cpu, wall, used = time.process_time() - cpu, time.monotonic() - started, group.usage()
        algorithm.rollout_workers.close()
    responses = (used["tokens"] - before["tokens"]) / scenario.lengths.mean
    engine_s = wall * scenario.engines
    return Figures(
        name=f"{scenario.name}, {scenario.engines} engines",
        engines=scenario.engines,
        responses=round(responses),
        step_s=wall,
        collect_us=1e6 * cpu / responses,
        after_us=None,
        cpu_share=cpu / wall,
        idle=1 - (used["busy_s"] - before["busy_s"]) / engine_s,
        occupancy=(used["sequence_s"] - before["sequence_s"]) / engine_s / scenario.slots,
        **memory.of(scenario.responses),
    )


def measure_real_actors(scenario: Scenario) -> list[Figures]:
    """Measure the control: simulated engines, each in a real LLMEnvRunner actor of RLlib, and hosted together."""
    hosted = measure_step(dataclasses.replace(scenario, name=f"{scenario.name}: the same, hosted"))
    with real_group(scenario) as (algorithm, responses), Memory() as memory:
        algorithm.training_step()
        cpu, before = time.process_time(), time.monotonic()
        algorithm.training_step()
        cpu, modeled = time.process_time() - cpu, (time.monotonic() - before) * scenario.speed
        record = algorithm.batch.record
    after = sum(1e6 * algorithm.cpu_seconds[name] / responses for name in AFTER_COLLECTION)
    real = Figures(
        name=scenario.name,
        engines=scenario.engines,
        responses=responses,
        step_s=modeled,
        collect_us=1e6 * cpu / responses - after,
        after_us=after,
        cpu_share=cpu / modeled,
        idle=record["throughput/idle_share"],
        occupancy=None,
        **memory.of(responses),
    )
    return [hosted, real]


@contextlib.contextmanager
def _simulated(scenario: Scenario) -> Iterator[tuple[MeasuredStep, SimulatedGroup]]:
    algorithm = build(
        queries_per_step=scenario.queries,
        group_size=GROUP_SIZE,
        max_tokens=scenario.lengths.limit,
        timeout_s=max(60.0, scenario.wall_s),
    )
    folder = tempfile.mkdtemp(prefix="scale")
    group = SimulatedGroup(scenario.specs(), per_host=PER_HOST, speed=scenario.speed)
    try:
        algorithm.keep_state_in(Path(folder))
        algorithm.simulate(
            group,
            max_num_seqs=scenario.slots,
            learner_s=scenario.learner_s / scenario.speed,
            longest_first=scenario.longest_first,
            lag=scenario.lag,
        )
        yield algorithm, group
    finally:
        algorithm.rollout_workers.close()
        group.close()
        algorithm.stop()
        shutil.rmtree(folder)


@contextlib.contextmanager
def _stealing(on: bool) -> Iterator[None]:
    """Schedule without stealing, for the comparison only."""
    plan_steal = dispatch_module.plan_steal
    if not on:
        dispatch_module.plan_steal = lambda *arguments: None
    try:
        yield
    finally:
        dispatch_module.plan_steal = plan_steal
