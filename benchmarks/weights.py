"""Time and memory of weight transfer from a learner's process to engines' processes through Ray's object store.

    python -m benchmarks.weights                    # a random model of 400 MB in float32, two engines: a minute
    python -m benchmarks.weights --engines 4 --bucket-mb 256 --json FILE

Ways: `whole` sends one state dict through the driver, as RLlib does; `buckets` is this library's transfer, one object a
bucket, in float32 or in bfloat16 (for engines that compute in it; here they convert, on the CPU, which costs time that
such engines do not spend). Ways take turns. `memory` is how far the peak of a process's resident set, shared memory
included, lies above what it was before the first push; every way has processes of its own. Learner and engines are
Ray actors that hold the library's own classes.
"""

import argparse
import logging
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import psutil
import ray

from algorithms.learner.weights import LearnerTensors
from algorithms.rollout.weight_sync.object_store import _store
from algorithms.rollout.weight_sync.serialization import Serialization
from benchmarks.record import benchmark_parser, empty_table, show

WAYS = ("whole", "buckets float32", "buckets bfloat16")
POLL_S = 0.002


@dataclass(frozen=True)
class Result:
    """One way: seconds of each push, and the peaks of memory in MB."""

    way: str
    seconds: list[float]
    learner_mb: float
    engine_mb: float
    driver_mb: float

    @property
    def median_s(self) -> float:
        """Seconds of the median push."""
        return statistics.median(self.seconds)


class PeakMemory:
    """Watches this process's resident set from a thread."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._before = self.peak = self._process.memory_info().rss
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.peak = max(self.peak, self._process.memory_info().rss)
            time.sleep(POLL_S)

    def megabytes(self) -> float:
        """Return the peak above the start."""
        return (self.peak - self._before) / 1e6


class Learner(LearnerTensors):
    """A learner as the transfer sees it: a model, its number and its version."""

    def __init__(self, folder: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(1)
        self._lm = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self._learner_index, self._weights_seq_no = 0, 0
        self.memory = PeakMemory()

    @property
    def lm(self) -> Any:
        """The model."""
        return self._lm

    def state(self) -> dict[str, Any]:
        """Return a copy of all weights."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self.policy_tensors()}

    def store(self, serialization: Serialization) -> Any:
        """Store the weights in buckets."""
        return _store(cast(Any, self), serialization)

    def megabytes(self) -> float:
        """Return the peak memory of this process."""
        return self.memory.megabytes()


class EngineActor:
    """An engine of the library in a process of its own."""

    def __init__(self, folder: str) -> None:
        import torch

        from algorithms.rollout.engines.transformers import TransformersEngine

        torch.set_num_threads(1)
        self.engine = TransformersEngine(model=folder, dtype="float32", max_num_seqs=1, eos_token_ids=[0])
        self.memory = PeakMemory()

    def load(self, weights: Any, version: int) -> int:
        """Load weights, whole or in buckets."""
        self.engine.load_weights(ray.get(weights[0]) if isinstance(weights, list) else weights, version)
        return self.engine.weights_version

    def megabytes(self) -> float:
        """Return the peak memory of this process."""
        return self.memory.megabytes()


class Lane:
    """The processes of one way."""

    def __init__(self, way: str, folder: str, engines: int, bucket_bytes: int) -> None:
        self.way, self.bucket_bytes = way, bucket_bytes
        actor: Any = ray.remote(num_cpus=0)
        self.learner = actor(Learner).remote(folder)
        self.engines = [actor(EngineActor).remote(folder) for _ in range(engines)]
        self.seconds: list[float] = []
        self.driver_mb = 0.0
        ray.get([process.megabytes.remote() for process in (self.learner, *self.engines)])

    def push(self, version: int) -> None:
        """Push once, and time it from the first call to the last engine's confirmation."""
        memory, started = PeakMemory(), time.perf_counter()
        if self.way == "whole":
            weights: Any = [ray.put(ray.get(self.learner.state.remote()))]
        else:
            serialization = Serialization(self.way.split()[1], self.bucket_bytes)
            _, weights = ray.get(self.learner.store.remote(serialization))
        held = ray.get([engine.load.remote(weights, version) for engine in self.engines])
        if held != [version] * len(self.engines):
            raise RuntimeError(f"engines hold {held}, {version} was pushed")
        self.seconds.append(time.perf_counter() - started)
        self.driver_mb = max(self.driver_mb, memory.megabytes())

    def result(self) -> Result:
        """Return the result; the first push, which starts everything up, is not in the times."""
        learner = ray.get(self.learner.megabytes.remote())
        engines = ray.get([engine.megabytes.remote() for engine in self.engines])
        return Result(self.way, self.seconds[1:], learner, max(engines), self.driver_mb)


def make_model(folder: str, hidden: int, layers: int, vocabulary: int) -> int:
    """Save a random Qwen2; return its bytes in float32."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=max(1, hidden // 256),
        tie_word_embeddings=False,
    )
    model = Qwen2ForCausalLM(config)
    model.save_pretrained(folder)
    return sum(parameter.nbytes for parameter in model.parameters())


def measure(arguments: argparse.Namespace) -> tuple[int, list[Result]]:
    """Measure all ways in turn."""
    with tempfile.TemporaryDirectory() as folder:
        size = make_model(folder, arguments.hidden, arguments.layers, arguments.vocabulary)
        bucket = int(arguments.bucket_mb * 1e6)
        lanes = [Lane(way, folder, arguments.engines, bucket) for way in WAYS]
        for repeat in range(arguments.repeats + 1):
            for lane in lanes:
                lane.push(repeat)
        return size, [lane.result() for lane in lanes]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table and, with --json, write it."""
    parser = benchmark_parser(
        __doc__,
        hidden=768,
        layers=4,
        vocabulary=48_000,
        engines=2,
        bucket_mb=64.0,
        repeats=7,
    )
    arguments = parser.parse_args(argv)
    ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    try:
        size, results = measure(arguments)
    finally:
        ray.shutdown()
    title = f"{size / 1e6:.0f} MB in float32 to {arguments.engines} engines"
    table = empty_table(title, "way", "seconds (least–most)", "learner, MB", "an engine, MB", "driver, MB")
    for result in results:
        spread = f"{result.median_s:.2f} ({min(result.seconds):.2f}–{max(result.seconds):.2f})"
        memory = (f"{value:.0f}" for value in (result.learner_mb, result.engine_mb, result.driver_mb))
        table.add_row(result.way, spread, *memory)
    rows = [asdict(result) | {"median_s": result.median_s} for result in results]
    settings = {name: value for name, value in vars(arguments).items() if name not in ("json", "record")}
    show([table], arguments, {"bytes": size, **settings, "results": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
