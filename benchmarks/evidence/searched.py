"""R³ on answers that are long searches, from docs/evidence/search.json: `python -m benchmarks.evidence.searched`."""

from collections.abc import Sequence

import numpy as np

from benchmarks.evidence.records import Run, runs

FILE = "search"
ARMS = ("r3", "r3-flat", "serr", "grpo")


def table() -> str:
    """Return what each arm's runs ranked, and what became of their answers, as Markdown; means over seeds."""
    heads = ("arm", "seeds", "ranked groups", "with an order", "pass@1 before", "after", "truncated before", "after")
    lines = [f"| {' | '.join([*heads, 'tokens after'])} |", "|---" * (len(heads) + 1) + "|"]
    for arm in ARMS:
        own = list(runs(FILE, arm).values())
        groups, ordered = (
            sum(run["totals"].get(f"ranking/{name}", 0.0) for run in own) for name in ("groups", "ordered")
        )
        cells = [f"`{arm}`", str(len(own)), f"{groups:.0f}", f"{ordered / groups:.0%}" if groups else ""]
        cells += [f"{_mean(own, 'pass@1', at):.1%}" for at in (0, -1)]
        cells += [f"{_mean(own, 'truncated', at):.1%}" for at in (0, -1)]
        cells.append(f"{_mean(own, 'mean_tokens', -1):.0f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean(own: Sequence[Run], column: str, at: int) -> float:
    return float(np.mean([run["evaluations"][column][at] for run in own]))


if __name__ == "__main__":
    print(table())
