"""What a large replay history costs: adding, retrieving and memory, against the bare writing of the same bytes.

    python -m benchmarks.history                      # 50,000 responses of 2,000 tokens, about half a minute
    python -m benchmarks.history --entries 1000000    # the size of a long run: 12 GB of disk, several minutes

Lengths are log-normal around the mean. A training step's responses are added together and committed, every
fiftieth step leaves a mark as a checkpoint would, and pools are kept at 16 a query, right and wrong together.
"""

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

from algorithms.r3_grpo.entry import pack
from algorithms.r3_grpo.replay import Entry, ReplayHistory
from algorithms.rollout.types import Context

PER_STEP, MARK_EVERY, DRAWS = 1024, 50, 2000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=50_000, help="responses to store")
    parser.add_argument("--tokens", type=int, default=2000, help="mean length of a response")
    parser.add_argument("--folder", type=Path, help="where to put the file; default: a temporary folder")
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        figures = measure(Path(folder), arguments.entries, arguments.tokens)
    for name, value in figures.items():
        print(f"{name:32} {value:,.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")


def measure(folder: Path, entries: int, mean_tokens: int) -> dict[str, float]:
    """Fill a history in `folder` and draw from it."""
    rng = np.random.default_rng(0)
    queries = max(1, entries // 16)
    history = ReplayHistory(capacity=8, history_window=32, path=folder / "history.sqlite")
    memory_before = psutil.Process().memory_info().rss
    adding = writing = 0.0
    slowest_step = 0.0
    with (folder / "baseline").open("wb") as baseline:
        for step, first in enumerate(range(0, entries, PER_STEP)):
            batch = [_entry(rng, index, queries, mean_tokens, step) for index in range(first, first + PER_STEP)]
            batch = batch[: entries - first]
            started = time.perf_counter()
            for one in batch:
                history.add(one)
                history.record(one.uid, one.correct, one.reward)
            history.commit()
            if step % MARK_EVERY == MARK_EVERY - 1:
                history.forget_before(history.mark())
            seconds = time.perf_counter() - started
            adding, slowest_step = adding + seconds, max(slowest_step, seconds)
            if step % 10 == 0:  # a tenth of the bytes is enough to know the disk, and spares it the rest
                started = time.perf_counter()
                baseline.writelines(map(pack, batch))
                baseline.flush()
                writing += 10 * (time.perf_counter() - started)
    history.mark()
    file_bytes = sum(path.stat().st_size for path in folder.glob("history.sqlite*"))
    reopened = ReplayHistory(capacity=8, history_window=32, path=folder / "history.sqlite")
    draws = np.array([_draw_seconds(reopened, rng, queries) for _ in range(DRAWS)])
    growth = psutil.Process().memory_info().rss - memory_before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - memory_before
    return {
        "entries added": float(entries),
        "entries kept": float(len(history)),
        "added per second": entries / adding,
        "ratio to bare writing": writing / adding,
        "slowest step of 1,024, s": slowest_step,
        "retrieval, median ms": float(np.median(draws)) * 1e3,
        "retrieval, 99 % ms": float(np.quantile(draws, 0.99)) * 1e3,
        "memory growth, MiB": growth / 2**20,
        "memory growth at peak, MiB": peak / 2**20,
        "file, GiB": file_bytes / 2**30,
    }


def _draw_seconds(history: ReplayHistory, rng: np.random.Generator, queries: int) -> float:
    uid, correct_group = f"query-{rng.integers(queries)}", bool(rng.random() < 0.5)
    started = time.perf_counter()
    history.opposites(uid, correct_group=correct_group, k=1, contexts="same", context=Context.PLAIN, rng=rng)
    return time.perf_counter() - started


def _entry(rng: np.random.Generator, index: int, queries: int, mean_tokens: int, step: int) -> Entry:
    prompt, length = 128, max(1, int(mean_tokens * rng.lognormal(-0.125, 0.5)))
    mask = np.arange(prompt + length) >= prompt
    correct = bool(rng.random() < 0.5)
    return Entry(
        # Sixteen passes over the queries, each in an order of its own, as epochs are.
        uid=f"query-{(index * 7919 + index // queries) % queries}",
        context=Context.PLAIN,
        tokens=rng.integers(0, 151_936, prompt + length, dtype=np.int32),
        loss_mask=mask,
        behaviour_logprobs=np.where(mask, -rng.random(prompt + length, dtype=np.float32), np.float32(0)),
        reward=float(correct),
        correct=correct,
        truncated=False,
        step=step,
    )


if __name__ == "__main__":
    main()
