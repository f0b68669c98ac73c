"""The page: one HTML file with its data, style and script, and without network requests."""

import base64
import datetime
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from algorithms.reporting.evaluations import evaluation_tables, found_evaluations
from algorithms.reporting.run_data import ReportError, RunData, differing, flat_settings, read_runs
from algorithms.reporting.trajectories import Limit, trajectories
from algorithms.utils.files import plain, write_text
from r3env.printable import printable

DEFAULT_NAME = "report.html"
_SCRIPTS = (
    "elements.js",
    "header.js",
    "tables.js",
    "chart.js",
    "curves.js",
    "tokens.js",
    "group.js",
    "trajectories.js",
    "main.js",
)


def write_report(paths: Sequence[Path], out: Path | None, limit: Limit) -> Path:
    """Write the page of some runs, in place of any file of that name.

    Returns:
        The file: `out`, or else `report.html` in the first run.

    Raises:
        ReportError: a folder is no run or holds what cannot be read, or the file cannot be written.
    """
    runs = read_runs(paths)
    file = out or runs[0].directory.path / DEFAULT_NAME
    title = ", ".join(run.label for run in runs)
    if file.exists() and not file.is_file():  # a device, in whose place a file would come
        raise ReportError(f"--out: {file} is no file; fix: name another one")
    text = render(plain(content(runs, limit)), title)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, text)
    except OSError as error:
        raise ReportError(f"--out: {file} cannot be written ({error.strerror}); fix: name another file") from error
    return file


def content(runs: Sequence[RunData], limit: Limit) -> dict[str, Any]:
    """Gather the page's data.

    Args:
        runs: at least one.
        limit: on the trajectories of all runs together.

    Raises:
        ReportError: a file of a run cannot be read.
    """
    settings = [flat_settings(run.config) for run in runs]
    return {
        "made": datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        "runs": [_facts(run) | {"settings": flat} for run, flat in zip(runs, settings, strict=True)],
        "differing": differing(settings),
        "panels": [asdict(panel) for panel in PANELS],
        "curves": [curves(run) for run in runs],
        "tables": [asdict(table) for table in evaluation_tables(runs, found_evaluations(runs))],
        "trajectories": trajectories(runs, limit),
    }


def _facts(run: RunData) -> dict[str, Any]:
    """Return what the head of the page shows of a run."""
    last = run.rows[-1]
    planned = run.setting("sft" if run.config.get("algorithm") == "sft" else "run", "steps")
    return {
        "label": run.label,
        "path": str(run.directory.path),
        "algorithm": run.summary.get("algorithm") or run.config.get("algorithm"),
        "model": run.setting("rl_module", "model"),
        "data": run.setting("environment", "data") or run.setting("environment", "id"),
        "heldout": run.setting("evaluation", "data"),
        "seed": run.setting("run", "seed"),
        "steps": run.steps,
        "planned_steps": planned,
        "finished": bool(run.summary),
        "tokens": last.get("throughput/generated_tokens"),
        "wall_s": run.summary.get("wall_s") or last.get("run/wall_s"),
    }


def render(data: Mapping[str, Any], title: str) -> str:
    """Fill the template; return the HTML.

    Args:
        data: what JSON can hold. Of its text, anything may come from a policy.
        title: of the window.
    """
    style = _asset("page.css")
    # One function around all: no name leaves it, and none of the page's text can be mistaken for one.
    script = "(() => {\n'use strict';\n" + "\n".join(map(_asset, _SCRIPTS)) + "\n})();"
    parts = {
        "POLICY": _policy(style, script),
        "TITLE": _escaped(title),
        "STYLE": style,
        "SCRIPT": script,
        "DATA": inline_json(data),
    }
    text = _asset("page.html")
    before, *fields = text.split("{{")
    return before + "".join(parts[name] + rest for name, rest in (field.split("}}", 1) for field in fields))


def inline_json(value: Any) -> str:
    """Serialize to JSON in which no HTML parser finds a tag or a comment, whatever text it holds."""
    text = json.dumps(_printable(value), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {printable(str(key)): _printable(entry) for key, entry in value.items()}
    return [_printable(entry) for entry in value] if isinstance(value, list | tuple) else value


def _policy(style: str, script: str) -> str:
    """Allow only this style and this script, by their hashes, and nothing from anywhere else."""
    return f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'"


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
    return f"'sha256-{digest}'"


def _escaped(text: str) -> str:
    return printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _asset(name: str) -> str:
    return files("algorithms.reporting").joinpath("assets", name).read_text(encoding="utf-8")


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
