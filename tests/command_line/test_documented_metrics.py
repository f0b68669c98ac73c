"""docs/reference/metrics.md lists what a run writes: all of it, and nothing else."""

import re
from pathlib import Path

import pytest

from .conftest import rows

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
# Written only where a setting or a device asks for them.
CONDITIONAL = {
    "eval/pass@1_after_reflection",
    "throughput/mfu",
    "reward/function/NAME",
    "loss/NAME",
    "tools/calls",
    "tools/used",
    "tools/failed",
    "rollout/changed_prefixes",
}

pytestmark = pytest.mark.slow


def documented() -> set[str]:
    """The tags in the first column of the page's tables, but for those of a supervised start."""
    text = re.sub(r"^## A supervised start$.*?(?=^## )", "", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S)
    cells = re.findall(r"^\| (`[^|]*`) \|", text, re.MULTILINE)
    return {tag for cell in cells for tag in re.findall(r"`([^`]+)`", cell)}


def test_every_metric_of_a_run_is_on_the_page_and_none_else(finished_run):
    written = {re.sub(r"^eval/pass@\d+$", "eval/pass@k", tag) for row in rows(finished_run[0]) for tag in row}
    assert written - documented() == set()
    assert documented() - written == CONDITIONAL
