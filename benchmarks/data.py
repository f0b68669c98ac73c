"""`python -m benchmarks.data [--rows 1000000]`: time and memory that loading a large file of problems takes.

Each format is loaded in a process of its own, by `MathEnv`, as a run does it; then the uids are listed, as the trainer
does, and queries are looked up. Prints one JSON object.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

FORMATS = ("jsonl", "json", "csv", "parquet")
_LOOK_UPS = 10_000


def main() -> None:
    """Write the files, load each and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data", description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--load", metavar="FILE", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.load:
        print(json.dumps(load(given.load)))
        return
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for format_ in given.formats:
            path = write(Path(folder) / f"problems.{format_}", given.rows)
            command = [sys.executable, "-m", "benchmarks.data", "--load", str(path)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            figures[format_] = {"file_mib": round(path.stat().st_size / 2**20, 1), **json.loads(done.stdout)}
            path.unlink()
    print(json.dumps({"rows": given.rows, **figures}, indent=2))


def load(path: str) -> dict[str, float]:
    """Load one file in this process; return memory in MiB, and times in seconds."""
    import psutil

    from r3env.envs.math import MathEnv

    def memory() -> float:
        return float(psutil.Process().memory_info().rss / 2**20)

    MathEnv("embedded:train").query("train-000")  # imports everything
    if path.endswith(".parquet"):
        import pyarrow.parquet  # noqa: F401  its 60 MiB are not the data's

    before = memory()
    env, started = MathEnv(path), time.perf_counter()
    count = len(env.queries)
    load_s, loaded = time.perf_counter() - started, memory()
    started = time.perf_counter()
    uids = env.uids
    list_s, listed = time.perf_counter() - started, memory()
    started = time.perf_counter()
    for uid in uids[:: max(1, count // _LOOK_UPS)]:
        env.query(uid)
    look_up_us = (time.perf_counter() - started) / min(count, _LOOK_UPS) * 1e6
    return {
        "load_s": round(load_s, 1),
        "load_growth_mib": round(loaded - before, 1),
        "list_uids_s": round(list_s, 1),
        "uids_growth_mib": round(listed - loaded, 1),
        "look_up_us": round(look_up_us, 1),
    }


def write(path: Path, rows: int) -> Path:
    """Write a file of that many different problems, a few hundred bytes each."""
    match path.suffix:
        case ".jsonl":
            with path.open("w") as file:
                file.writelines(json.dumps(row) + "\n" for row in problems(rows))
        case ".json":
            with path.open("w") as file:
                file.write("[")
                file.writelines(("," if number else "") + json.dumps(row) for number, row in enumerate(problems(rows)))
                file.write("]")
        case ".csv":
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, ["problem", "answer", "solution"])
                writer.writeheader()
                writer.writerows(problems(rows))
        case _:
            _write_parquet(path, rows)
    return path


def problems(rows: int) -> Iterator[dict[str, str]]:
    """Yield rows with an unused solution, as real data sets have one."""
    for number in range(rows):
        text = (
            f"A train leaves with {number} passengers, and at each of 7 stations {number % 13} get on. How many arrive?"
        )
        answer = number + 7 * (number % 13)
        yield {"problem": text, "answer": str(answer), "solution": f"{number} + 7 * {number % 13} = {answer}. " * 3}


def _write_parquet(path: Path, rows: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.string()) for name in ("problem", "answer", "solution")])
    with pq.ParquetWriter(path, schema) as writer:
        batch = []
        for row in problems(rows):
            batch.append(row)
            if len(batch) == 50_000:
                writer.write_table(pa.Table.from_pylist(batch, schema))
                batch = []
        writer.write_table(pa.Table.from_pylist(batch, schema))


if __name__ == "__main__":
    main()
