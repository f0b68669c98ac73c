"""The curves of a run: one list of numbers per tag."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from algorithms.report.run_data import RunData

_GENERATED = "throughput/generated_tokens"
_ACCURACY = "eval/pass@1"
_PROMPTS, _REFLECTED = "reflection/prompts", "reflection/correct"


@dataclass(frozen=True)
class Panel:
    """One panel.

    Args:
        tag: of metrics.jsonl.
        unit: `share` is shown in percent.
        sparse: measured now and then: dots, and no smoothing.
    """

    tag: str
    title: str
    unit: str = ""
    sparse: bool = False


PANELS = (
    Panel(_ACCURACY, "Held-out pass@1", "share", sparse=True),
    Panel("reward/mean", "Reward"),
    Panel("groups/solve_all", "Groups all correct", "share"),
    Panel("groups/solve_none", "Groups all incorrect", "share"),
    Panel("policy/entropy", "Policy entropy", "nats per token"),
    Panel("response/truncated", "Truncated responses", "share"),
    Panel("response/no_answer", "Responses without an answer", "share"),
    Panel("response/mean_tokens", "Response length", "tokens"),
    Panel("replay/added", "Replayed samples", "per step"),
    Panel(_PROMPTS, "Reflection prompts", "per step"),
    Panel(_REFLECTED, "Reflected answers correct", "share"),
    Panel("ranking/ranked", "Ranked responses", "per step"),
)


def panels() -> list[dict[str, Any]]:
    """Return the panels, for the page."""
    return [asdict(panel) for panel in PANELS]


def curves(run: RunData) -> dict[str, Any]:
    """Return `steps`, `tokens` (generated until then) and one list per tag; None where nothing was measured."""
    rows = list(_with_evaluations(run))
    series = {panel.tag: [_number(row.get(panel.tag)) for row in rows] for panel in PANELS}
    series[_REFLECTED] = _where_prompted(rows, series, run.setting("training", "max_off_policy_steps") or 0)
    return {
        "steps": [row["step"] for row in rows],
        "tokens": _filled([row.get(_GENERATED) for row in rows]),
        "series": {tag: values for tag, values in series.items() if any(value is not None for value in values)},
    }


def _with_evaluations(run: RunData) -> Iterator[Mapping[str, Any]]:
    """Yield the rows, with the evaluations before and after training, which belong to none."""
    measured = {
        one["step"]: (one.get("metrics") or {}).get("pass@1")
        for one in (run.evaluation.get(side) for side in ("before", "after"))
        if isinstance(one, Mapping) and isinstance(one.get("step"), int)
    }
    if 0 in measured:
        yield {"step": 0, _GENERATED: 0, _ACCURACY: measured[0]}
    for row in run.rows:
        yield row if row.get(_ACCURACY) is not None else {**row, _ACCURACY: measured.get(row["step"])}


def _where_prompted(rows: Sequence[Mapping[str, Any]], series: Mapping[str, list[float | None]], lag: int) -> list[Any]:
    """Return the share of reflected answers that are correct; None without prompts, where the row has 0.

    With a lag a step's answers are to prompts that were built so many steps before.
    """
    prompted = {row["step"]: prompts for row, prompts in zip(rows, series[_PROMPTS], strict=True)}
    return [
        share if prompted.get(row["step"] - lag) else None for row, share in zip(rows, series[_REFLECTED], strict=True)
    ]


def _number(value: Any) -> float | None:
    """Round to five digits: more than a panel shows."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(f"{value:.5g}")


def _filled(values: Sequence[Any]) -> list[float]:
    """Fill gaps with the number of the row before."""
    last = 0.0
    filled: list[float] = []
    for value in values:
        last = value if isinstance(value, int | float) else last
        filled.append(last)
    return filled
