"""What a large replay history costs: adding, retrieving, rollback and memory, beside bare writing of the same bytes.

    python -m benchmarks.history                      # 50,000 responses of 2,000 tokens, under a minute
    python -m benchmarks.history --entries 1000000    # the size of a long run: 30 GB of disk, several minutes

On a core that other processes use as well, the rate on a core counts only the seconds that this one had of it.
Lengths are log-normal around the mean, texts have three bytes a token. A step adds the groups of 128 queries, eight
responses each, in an epoch order of its own, and commits; every fiftieth leaves a mark as a checkpoint would. Pools
hold eight correct and eight incorrect responses. They fill until so many are stored; then each response replaces one.
"""

import resource
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
from rich.table import Table

from algorithms.history.entry import pack
from algorithms.history.store import ReplayEntry, ReplayHistory
from algorithms.rollout.types import Context
from benchmarks.record import benchmark_parser, show

GROUP, QUERIES_PER_STEP, MARK_EVERY = 8, 128, 50
CAPACITY, KEPT_PER_QUERY = 8, 14  # of the 16 that fit; the two pools of a query do not fill alike
STEPS_WHEN_FULL, DRAWS = 50, 2000
VOCABULARY = 151_936


def main() -> None:
    """Measure and print."""
    parser = benchmark_parser(
        __doc__,
        entries=(50_000, "responses to store"),
        tokens=(2000, "mean length of a response"),
    )
    parser.add_argument("--folder", type=Path, help="where to put the file; default: a temporary folder")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        figures = measure(Path(folder), arguments.entries, arguments.tokens)
    table = Table("figure", "measured")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.2f}")
    show([table], arguments, figures)


@dataclass
class Filling:
    """Seconds of each step, those of them on a core, and of bare writing the bytes of every tenth."""

    steps: list[float] = field(default_factory=list)
    on_a_core: list[float] = field(default_factory=list)
    writing: list[float] = field(default_factory=list)

    def add(self, history: ReplayHistory, batch: list[ReplayEntry], folder: Path) -> None:
        """Store a step's responses as training does."""
        number = len(self.steps)
        started, core_started = time.perf_counter(), time.process_time()
        for entry in batch:
            history.add(entry)
        for entry in batch:
            history.record(entry.uid, entry.correct, entry.reward)
        history.commit()
        if number % MARK_EVERY == MARK_EVERY - 1:
            history.prune(history.savepoint())
        self.steps.append(time.perf_counter() - started)
        self.on_a_core.append(time.process_time() - core_started)
        if number % 10 == 0:  # enough to know the disk, and spares it the rest
            started = time.perf_counter()
            with (folder / "bare").open("ab") as bare:
                bare.writelines(part for entry in batch for part in (pack(entry), entry.text.encode()))
            self.writing.append(time.perf_counter() - started)

    @staticmethod
    def per_second(seconds: list[float]) -> float:
        """Return responses added per second, commits and marks included."""
        return GROUP * QUERIES_PER_STEP / float(np.mean(seconds))


def measure(folder: Path, entries: int, mean_tokens: int) -> dict[str, float]:
    """Fill a history in `folder`, sample from it, and roll back to its last mark."""
    rng = np.random.default_rng(0)
    queries = max(QUERIES_PER_STEP, entries // KEPT_PER_QUERY)
    stream = _responses(rng, queries, mean_tokens)
    per_step = GROUP * QUERIES_PER_STEP
    file = folder / "history.sqlite"
    history = ReplayHistory(capacity=CAPACITY, history_window=32, path=file)
    memory_before = psutil.Process().memory_info().rss
    filling, full = Filling(), Filling()
    while len(history) < entries:
        filling.add(history, list(islice(stream, per_step)), folder)
    for _ in range(STEPS_WHEN_FULL):
        full.add(history, list(islice(stream, per_step)), folder)
    stored, mark = len(history), history.savepoint()
    draws = np.array([_draw_seconds(history, rng, queries) for _ in range(DRAWS)])
    history.close()
    started = time.perf_counter()
    history = ReplayHistory(capacity=CAPACITY, history_window=32, path=file)
    history.rollback(mark)
    resuming = time.perf_counter() - started
    growth = psutil.Process().memory_info().rss - memory_before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - memory_before
    return {
        "responses stored": float(stored),
        "added per second": filling.per_second(filling.steps),
        "added per second on a core": filling.per_second(filling.on_a_core),
        "added per second, pools full": full.per_second(full.steps),
        "the same, on a core": full.per_second(full.on_a_core),
        "ratio to bare writing": float(np.mean(filling.writing) / np.mean(filling.steps)),
        "slowest step of 1,024, s": max(filling.steps + full.steps),
        "retrieval, median ms": float(np.median(draws)) * 1e3,
        "retrieval, 99 % ms": float(np.quantile(draws, 0.99)) * 1e3,
        "opening at the last mark, s": resuming,
        "memory growth, MiB": growth / 2**20,
        "memory growth at peak, MiB": peak / 2**20,
        "file, GiB": sum(path.stat().st_size for path in folder.glob("history.sqlite*")) / 2**30,
    }


def _draw_seconds(history: ReplayHistory, rng: np.random.Generator, queries: int) -> float:
    uid, correct_group = f"query-{rng.integers(queries)}", bool(rng.random() < 0.5)
    started = time.perf_counter()
    history.sample_opposite_outcomes(
        uid, correct_group=correct_group, k=1, contexts="same", context=Context.PLAIN, rng=rng
    )
    return time.perf_counter() - started


def _responses(rng: np.random.Generator, queries: int, mean_tokens: int) -> Iterator[ReplayEntry]:
    """Yield epochs without end; all responses differ, though they are made from a thousand."""
    originals = [_entry(rng, mean_tokens) for _ in range(1000)]
    while True:
        for query in rng.permutation(queries):
            for _ in range(GROUP):
                original = originals[rng.integers(len(originals))]
                tokens = original.tokens.copy()
                tokens[-3:] = rng.integers(0, VOCABULARY, 3)
                correct = bool(rng.random() < 0.5)
                yield replace(original, uid=f"query-{query}", tokens=tokens, correct=correct, reward=float(correct))


def _entry(rng: np.random.Generator, mean_tokens: int) -> ReplayEntry:
    prompt, length = 128, max(3, int(mean_tokens * rng.lognormal(-0.125, 0.5)))
    mask = np.arange(prompt + length) >= prompt
    return ReplayEntry(
        uid="",
        context=Context.PLAIN,
        tokens=rng.integers(0, VOCABULARY, prompt + length, dtype=np.int32),
        loss_mask=mask,
        old_logprobs=-rng.random(length, dtype=np.float32),
        reward=0.0,
        correct=False,
        truncated=False,
        step=1,
        text="abc" * length,
    )


if __name__ == "__main__":
    main()
