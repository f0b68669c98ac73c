"""Train the same task with several arms and seeds, and compare them at equal steps and at equal generated tokens.

    python -m benchmarks.ablation --arms grpo,r3 --seeds 5 --out runs/ablation

Each run is one process and one run directory `OUT/ARM-SEED`; those that have a summary are not run again. Settings
after the options go to every run, such as `run.steps=40`.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

R3 = "algorithms.r3_grpo"
ARMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "grpo": ("algorithms.grpo", ()),
    "r3": (R3, ()),
    "r3-no-ccr": (R3, ("replay.enabled=false",)),
    "r3-no-isr": (R3, ("reflection.enabled=false",)),
    "r3-no-serr": (R3, ("ranking.enabled=false",)),
    "r3-no-distil": (R3, ("reflection.distil=false",)),
    # The same method with the other engine: what it learns must not depend on who samples.
    "r3-vllm": (R3, ("env_runners.engine=vllm", "env_runners.vllm={max_model_len: 256, enforce_eager: true}")),
}


@dataclass(frozen=True)
class Run:
    """What one run learnt.

    Args:
        tokens: generated tokens at each evaluation, from 0.
        accuracy: held-out pass@1 at each of them.
    """

    before: float
    after: float
    tokens: np.ndarray
    accuracy: np.ndarray

    def accuracy_at(self, tokens: float) -> float:
        """Held-out pass@1 after that many generated tokens, between evaluations by a straight line."""
        return float(np.interp(tokens, self.tokens, self.accuracy))


def main() -> None:
    """Run what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    parser.add_argument("--config", default=None)
    parser.add_argument("--arms", default="grpo,r3", help=f"of {', '.join(ARMS)}")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/ablation"))
    arguments = parser.parse_args()
    arms = arguments.arms.split(",")
    if unknown := set(arms) - set(ARMS):
        parser.error(f"unknown arms {sorted(unknown)}; there are {', '.join(ARMS)}")
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    todo = [(arm, seed) for seed in seeds for arm in arms]
    for number, (arm, seed) in enumerate(todo, 1):
        print(f"run {number}/{len(todo)}: {arm}, seed {seed}", file=sys.stderr)
        train(arm, seed, arguments.out, arguments.config, arguments.overrides)
    results = {arm: [read(arguments.out / f"{arm}-{seed}") for seed in seeds] for arm in arms}
    Console().print(table(results))


def train(arm: str, seed: int, out: Path, config: str | None, overrides: Sequence[str]) -> None:
    """Train one arm with one seed, unless its summary is there."""
    if (out / f"{arm}-{seed}" / "summary.json").is_file():
        return
    module, settings = ARMS[arm]
    run = [f"run.dir={out}", f"run.name={arm}-{seed}", f"run.seed={seed}", "run.save_rollouts=false"]
    command = [sys.executable, "-m", module, *(["--config", config] if config else []), *run, *settings, *overrides]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def read(folder: Path) -> Run:
    """Read a finished run's accuracy curve."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    before, after = summary["eval"]["before"]["pass@1"], summary["eval"]["after"]["pass@1"]
    measured = [(row["throughput/generated_tokens"], row["eval/pass@1"]) for row in rows if "eval/pass@1" in row]
    points = [(0.0, before), *measured, (float(summary["generated_tokens"]), after)]
    tokens, accuracy = np.array(points).T
    return Run(before, after, tokens, accuracy)


def table(results: dict[str, list[Run]]) -> Table:
    """Mean and standard deviation over seeds; equal tokens are those of the thriftiest run."""
    budget = min(run.tokens[-1] for runs in results.values() for run in runs)
    columns = Table(title="Held-out pass@1, mean ± standard deviation over seeds", title_justify="left")
    for name in ("arm", "seeds", "before", "after", f"at {budget / 1000:.0f}k tokens", "generated tokens"):
        columns.add_column(name, justify="left" if name == "arm" else "right")
    for arm, runs in results.items():
        columns.add_row(
            arm,
            str(len(runs)),
            _mean_and_sd([run.before for run in runs]),
            _mean_and_sd([run.after for run in runs]),
            _mean_and_sd([run.accuracy_at(budget) for run in runs]),
            f"{np.mean([run.tokens[-1] for run in runs]) / 1000:.0f}k",
        )
    return columns


def _mean_and_sd(values: Sequence[float]) -> str:
    spread = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{spread}"


if __name__ == "__main__":
    main()
