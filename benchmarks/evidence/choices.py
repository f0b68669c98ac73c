"""How settings were chosen, from docs/evidence: `python -m benchmarks.evidence.choices`.

A number with † has no record: it was copied by hand, see docs/evidence/transcribed.json.
"""

import json
from typing import Any

import numpy as np

from benchmarks.evidence.records import EVIDENCE, runs

BUDGET = 150_000
TRANSCRIBED = "†"
RATES = ("3e-5", "6e-5", "1.2e-4", "2.4e-4", "4.8e-4")
ARMS = {"grpo": "GRPO", "dapo": "DAPO", "r3": "R³"}

# Record → (arm, what it sets, what came of it).
CHOICES = {
    "choices": (
        ("recomputed", "`replay.ratio=recomputed`", "left at `stored`"),
        ("k-2", "`replay.k=2`", "left at 1"),
        ("k-4", "`replay.k=4`", "left at 1"),
        ("contexts-any", "`replay.contexts=any`", "left at `same`"),
        ("tau-0.1", "`reflection.threshold=0.1`", "left at 0.25"),
        ("share-0.125", "`reflection.max_share=0.125`", "left at 0.25"),
        ("share-0.5", "`reflection.max_share=0.5`", "left at 0.25"),
        ("no-ranking", "`ranking.enabled=false`", "ranking stays on, as the penalty that it is here"),
        ("unsolved-only", "reflection only on queries without a stored success (no longer in the code)", "not kept"),
        (
            "unsolved-only-centered",
            "the same, and `ranking.baseline=centered`",
            "`finished_wrong` stays the default",
        ),
        ("unsolved-only-no-ranking-recomputed", "the same, without ranking, `replay.ratio=recomputed`", ""),
    ),
    "choices2": (
        ("alpha-0.5", "`replay.std_scale=0.5` (α)", "left at 1"),
        ("alpha-2", "`replay.std_scale=2` (α)", "left at 1"),
        ("no-distil", "`reflection.distill=false`", "stays on"),
        ("window-8", "`history.window=8`", "left at 32, four groups"),
        ("window-all", "`history.window=0` (all)", "left at 32, four groups"),
        ("floor-0", "`ranking.std_floor=0`", "left at 0.5"),
        ("scope-all", "`ranking.scope=all` with `ranking.baseline=centered`", "left at `truncated`"),
        ("max-reward-0.3", "`ranking.max_reward=0.3`", "left at 0.1"),
        ("top-1", "`ranking.top_fraction=1`", "left at 0.2; the [same run](#recheck) as the default"),
    ),
}


def at_budget(name: str, arm: str) -> list[float]:
    """Interpolate held-out pass@1 after 150k generated tokens: one number per seed, none without a record."""
    return [
        float(np.interp(BUDGET, run["evaluations"]["generated_tokens"], run["evaluations"]["pass@1"]))
        for _, run in sorted(runs(name, arm).items())
    ]


def learning_rates() -> str:
    """Return pass@1 by learning rate and arm as Markdown, one number per seed."""
    lines = [f"| learning rate | {' | '.join(ARMS.values())} |", "|---" * (1 + len(ARMS)) + "|"]
    by_hand = _transcribed()["learning-rates"]
    for rate in RATES:
        cells = []
        for arm in ARMS:
            recorded = at_budget("development2", f"{arm}-{rate}")
            copied = by_hand.get(rate, {}).get(arm, [])
            cells.append(", ".join([*map(_number, recorded), *(_number(value) + TRANSCRIBED for value in copied)]))
        lines.append(f"| {rate} | {' | '.join(cells)} |")
    return "\n".join(lines)


def table(name: str) -> str:
    """Return the choices of a record as Markdown, the defaults in its first row.

    Args:
        name: of `CHOICES`.
    """
    (default,) = at_budget("choices", "r3")
    lines = ["| choice | pass@1 | |", "|---|---|---|", f"| the defaults | {_number(default)} | |"]
    by_hand = _transcribed()["choices"]
    for arm, choice, result in CHOICES[name]:
        recorded = at_budget(name, arm)
        value = _number(recorded[0]) if recorded else _number(by_hand[arm]) + TRANSCRIBED
        lines.append(f"| {choice} | {value} | {result} |")
    return "\n".join(lines)


def _transcribed() -> dict[str, Any]:
    return json.loads((EVIDENCE / "transcribed.json").read_text(encoding="utf-8"))


def _number(value: float) -> str:
    return f"{value:.3f}"


def main() -> None:
    """Print the tables."""
    print("\n\n".join([learning_rates(), *map(table, CHOICES)]))


if __name__ == "__main__":
    main()
