"""The sweep of word problems on a laptop: what each arm gained on held-out problems, and at which cost.

    python -m benchmarks.laptop_math runs/laptop-math "GRPO, lr 1e-5"   # add a run, and print the table
    python -m benchmarks.laptop_math                                    # print the table of the records
    python -m benchmarks.laptop_math --cut svamp.jsonl FOLDER           # SVAMP's problems, as the sweep cuts them

A record has the arm, the settings that a sweep varies, the cost, and the metrics of both evaluations with the interval
of the gain over problems. No text of a problem is in it.
"""

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from algorithms.train.run_directory import SIDES, RunDirectory
from algorithms.utils.files import write_text
from algorithms.utils.provenance import code_commit, machine
from algorithms.utils.statistics import in_points, paired_bootstrap

RECORDS = Path(__file__).parents[1] / "docs" / "evidence" / "laptop-math.jsonl"
METRICS = ("pass@1", "mean_tokens", "truncated", "no_answer", "problems", "samples")
VARIED = {
    "rl_module": ("dtype", "lora_rank"),
    "env_runners": ("temperature", "max_response_tokens"),
    "sft": ("rows", "batch_size", "lr", "epochs", "steps"),
    "training": ("lr", "group_size", "queries_per_step"),
}
# Problems of SVAMP's 1,000; `test` is for the arm that was chosen.
PARTS = {"train": 550, "development": 150, "test": 300}
Record = Mapping[str, Any]


def read_run(folder: Path, arm: str, note: str = "", commit: str = "") -> dict[str, Any]:
    """Return the record of a run, of a supervised start or of a training; of one that was stopped without `after`."""
    run = RunDirectory.open(folder)
    evaluation, steps = run.read_evaluation(), run.read_metrics()
    given = yaml.safe_load(run.config_file.read_text("utf-8"))
    summary = json.loads(run.summary_file.read_text("utf-8")) if run.summary_file.exists() else {}
    sides = {side: evaluation[side]["metrics"] for side in SIDES if side in evaluation}
    correct = [evaluation.get(side, {}).get("correct", {}) for side in SIDES]
    change = paired_bootstrap(*correct)
    return {
        "arm": arm,
        "note": note,
        "commit": commit or code_commit() or "",
        "machine": summary.get("machine", f"not recorded; added on {machine()}"),
        "settings": {
            section: {name: given[section][name] for name in names if name in given[section]}
            for section, names in VARIED.items()
            if section in given
        },
        "steps": steps[-1]["step"],
        "minutes": round(steps[-1]["run/wall_s"] / 60, 1),
        "gain": [change.mean, change.low, change.high] if change else None,
        **{side: {name: found[name] for name in METRICS if name in found} for side, found in sides.items()},
    }


def read_records(file: Path = RECORDS) -> list[dict[str, Any]]:
    """Return the records in the order in which they were added."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []


def add(record: Record, file: Path) -> None:
    """Add a record, in place of one of the same arm."""
    kept = [known for known in read_records(file) if known["arm"] != record["arm"]]
    write_text(file, "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in (*kept, record)))


def table(records: Sequence[Record]) -> str:
    """Tabulate the arms."""
    columns = ("arm", "steps", "minutes", "pass@1", "gain [95 %]", "tokens", "truncated", "problems × answers", "note")
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for record in records:
        sides = [record[side] for side in SIDES if side in record]
        points = [f"{in_points(part):+.1f}" for part in record["gain"] or ()]
        cells = [
            record["arm"],
            str(record["steps"]),
            f"{record['minutes']:.0f}",
            " → ".join(f"{side['pass@1']:.1%}".replace("%", " %") for side in sides),
            f"{points[0]} [{points[1]}, {points[2]}]" if points else "not measured",
            " → ".join(f"{side['mean_tokens']:.0f}" for side in sides),
            " → ".join(f"{side['truncated']:.0%}".replace("%", " %") for side in sides),
            f"{sides[0]['problems']:.0f} × {sides[0]['samples']:.0f}",
            record["note"],
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def cut(source: Path, folder: Path) -> None:
    """Write SVAMP's problems, in an order by chance, as `svamp-PART.jsonl` for each of `PARTS`.

    Args:
        source: JSON lines with the column `ID`, in any order.
        folder: for the files; must exist.

    Raises:
        ValueError: the file does not have that many lines.
    """
    lines = sorted(source.read_text(encoding="utf-8").splitlines(), key=lambda line: json.loads(line)["ID"])
    if len(lines) != sum(PARTS.values()):
        raise ValueError(f"{source} has {len(lines)} problems instead of {sum(PARTS.values())}")
    random.Random(0).shuffle(lines)
    rest = iter(lines)
    for part, count in PARTS.items():
        write_text(folder / f"svamp-{part}.jsonl", "".join(f"{line}\n" for line in islice(rest, count)))


def main(argv: Sequence[str] | None = None) -> None:
    """Add a run where one is named, and print the table; or cut a file."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.laptop_math", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("run", nargs="?", type=Path, help="folder of a run, to add to the records")
    parser.add_argument("arm", nargs="?", default="", help="its name in the table")
    parser.add_argument("--note", default="", help="what a reader must know of it")
    parser.add_argument("--commit", default="", help="of the code that trained; default: of this code")
    parser.add_argument("--records", type=Path, default=RECORDS, help="file of records")
    parser.add_argument("--cut", nargs=2, type=Path, metavar=("SVAMP", "FOLDER"), help="cut SVAMP's file, and end")
    given = parser.parse_args(argv)
    if given.cut:
        cut(*given.cut)
        return
    if given.run:
        add(read_run(given.run, given.arm or given.run.name, given.note, given.commit), given.records)
    print(table(read_records(given.records)))


if __name__ == "__main__":
    main()
