"""Figures from committed records: tables and pictures of docs/evidence/*.json, and the embedded model's report."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import r3env.assets
from benchmarks.ablation.figure import draw, held_out_panels
from benchmarks.ablation.table import levels, paired
from benchmarks.evidence import choices, controls, recheck, searched
from benchmarks.evidence.records import finished
from benchmarks.looks import TITLES


def controls_and_picture(images: Path) -> str:
    """Return the table of R³ beside its controls, and draw their panels."""
    arms = [arm for arm in controls.ARMS if arm != "serr"]
    draw(finished(controls.FILE, arms), images / "controls.png", held_out_panels("cpu_s"))
    return controls.table()


def searches(_: Path) -> str:
    """Return what ranking found in long searches."""
    return searched.table()


def recheck_output(_: Path) -> str:
    """Return what the recheck prints."""
    return f"```\n{recheck.report()}\n```"


def ablation_levels(images: Path, name: str, arms: Sequence[str], picture: str = "") -> str:
    """Return the levels of a record's arms, and draw them.

    Args:
        images: folder of the picture.
        name: of the record.
        arms: in the order of the table.
        picture: file name; nothing is drawn without one.
    """
    results = finished(name, arms)
    if picture:
        draw(results, images / picture, held_out_panels("steps"))
    return f"Held-out pass@1:\n\n{levels({_called(arm): runs for arm, runs in results.items()})}".strip()


def ablation_differences(_: Path, name: str, arms: Sequence[str]) -> str:
    """Return the differences of a record's arms to the first."""
    table = paired({_called(arm): runs for arm, runs in finished(name, arms).items()})
    return f"Difference to `{arms[0]}`:\n\n{table}".strip()


def ablation(images: Path, name: str, arms: Sequence[str], picture: str = "") -> str:
    """Return levels and differences of a record's arms; see `ablation_levels`."""
    return f"{ablation_levels(images, name, arms, picture)}\n\n{ablation_differences(images, name, arms)}"


def learning_rates(_: Path) -> str:
    """Return the search for learning rates."""
    return choices.learning_rates()


def choices_of(_: Path, part: str) -> str:
    """Return one of the tables of choices."""
    return choices.table(part)


def embedded_before(_: Path) -> str:
    """Return what the embedded model can do before training."""
    names = {"pass@1": "pass@1", "pass@8": "pass@8", "truncated": "truncated", "never_solved": "never solved"}
    report = _embedded()
    cells = " | ".join(f"{report[name]:.3f}" for name in names)
    return f"| {' | '.join(names.values())} |\n{'|---' * len(names)}|\n| {cells} |"


def embedded_contexts(_: Path) -> str:
    """Return the embedded model's pass@1 in four contexts, on problems that it missed."""
    tries = _embedded()["second_try"]
    once, always = tries["problems missed at least once"], tries["problems missed every time"]
    contexts = {
        "bare": "bare prompt",
        "own attempt": "after its own failed attempt",
        "empty attempt": "after an empty attempt",
        "another's attempt": "after another problem's attempt",
    }
    heads = (
        f"missed {when} ({side['problems']} problems)"
        for when, side in (("at least once", once), ("every time", always))
    )
    rows = (f"| {title} | {once[name]:.3f} | {always[name]:.3f} |" for name, title in contexts.items())
    return "\n".join([f"| context | {' | '.join(heads)} |", "|---|---|---|", *rows])


def _embedded() -> dict[str, Any]:
    return json.loads((Path(r3env.assets.__file__).parent / "report.json").read_text(encoding="utf-8"))


def _called(arm: str) -> str:
    return f"`{arm}`: {TITLES[arm]}"
