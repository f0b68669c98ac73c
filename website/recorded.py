"""Figures from committed records that are more than a benchmark's own table."""

import json
from pathlib import Path
from typing import Any

import r3env.assets
from benchmarks import evidence, laptop


def laptop_gains(images: Path) -> str:
    """Return each arm's gain with the curves over generated tokens, which it draws."""
    runs = laptop.read_records()
    laptop.draw_curves(runs, images / "laptop.png")
    return f"{laptop.gains(runs)}\n\n![Held-out pass@1 over generated tokens](../images/laptop.png)"


def laptop_answers() -> str:
    """Return answers before and after, of one run of GRPO and one of R³."""
    return laptop.answers(laptop.read_records(), laptop.SHOWN)


def third(images: Path, regime: str) -> str:
    """Return a regime's arms beside GRPO, with the curves over generated tokens, which it draws."""
    runs = evidence.read(regime)
    picture = f"third-{regime}.png"
    laptop.draw_curves(runs, images / picture, evidence.REFERENCES)
    words = "Held-out pass@1 over generated tokens, bands for GRPO and R³"
    return f"{evidence.compared(runs)}\n\n![{words}](../images/{picture})"


def embedded_before() -> str:
    """Return what the embedded model can do before training."""
    names = {"pass@1": "pass@1", "pass@8": "pass@8", "truncated": "truncated", "never_solved": "never solved"}
    report = _embedded()
    cells = " | ".join(f"{report[name]:.3f}" for name in names)
    return f"| {' | '.join(names.values())} |\n{'|---' * len(names)}|\n| {cells} |"


def embedded_contexts() -> str:
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
