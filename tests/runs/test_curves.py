import math

import pytest
from PIL import Image

from algorithms.train.curves import _accuracies, draw_accuracy, draw_curves

FULL = {
    "reward/mean": 0.5, "groups/solve_all": 0.1, "groups/solve_none": 0.4, "policy/entropy": 0.7,
    "eval/pass@1": 0.3, "eval/pass@8": 0.6, "response/mean_tokens": 20.0, "response/truncated": 0.05,
    "replay/added": 3, "reflection/prompts": 2, "ranking/ranked": 5,
}  # fmt: skip
SUMMARY = {
    "algorithm": "R3GRPO", "steps": 40, "generated_tokens": 12345, "wall_s": 60.0,
    "eval": {"before": {"pass@1": 0.2, "pass@8": 0.5}, "after": {"pass@1": 0.4, "pass@8": 0.7}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "summary"),
    [
        ([], {}),
        ([{"step": 1}], {}),
        ([{"step": 1, **FULL}], SUMMARY),
        ([{"step": step, **FULL} for step in range(1, 41)], SUMMARY),
        ([{"step": 1, "reward/mean": None}, {"step": 2, "reward/mean": math.nan}], {"eval": None}),
        ([{"step": 1, "reward/mean": 0.5}], {"eval": {"before": {"pass@1": None}, "after": {}}}),
        ([{"step": 1, "policy/entropy": 0.0, "response/truncated": 0.0, "ranking/ranked": 0}], {"steps": 0}),
    ],
)
def test_any_run_has_curves(tmp_path, rows, summary, recwarn):
    path = draw_curves(rows, summary, tmp_path / "curves.png")
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert image.width > 1000
        # More than one color: something was drawn.
        assert len(image.convert("RGB").getcolors(maxcolors=1 << 24)) > 2
    # A file that some other test left open is collected at any time.
    assert not [warning for warning in recwarn if not issubclass(warning.category, ResourceWarning)]
    assert list(tmp_path.iterdir()) == [path]


def test_the_same_run_gives_the_same_picture_and_another_does_not(tmp_path):
    rows = [{"step": step, **FULL} for step in range(1, 5)]
    first = draw_curves(rows, SUMMARY, tmp_path / "a.png").read_bytes()
    assert draw_curves(rows, SUMMARY, tmp_path / "b.png").read_bytes() == first
    higher = [{**row, "reward/mean": row["step"]} for row in rows]
    assert draw_curves(higher, SUMMARY, tmp_path / "c.png").read_bytes() != first


def test_accuracy_alone_is_one_panel_that_follows_the_accuracy(tmp_path):
    rows = [{"step": step, **FULL} for step in range(1, 5)]
    first = draw_accuracy(rows, SUMMARY, tmp_path / "a.png").read_bytes()
    assert (
        draw_accuracy([{**row, "reward/mean": 9} for row in rows], {**SUMMARY}, tmp_path / "b.png").read_bytes()
        == first
    )
    higher = [{**row, "eval/pass@1": 0.9} for row in rows]
    assert draw_accuracy(higher, SUMMARY, tmp_path / "c.png").read_bytes() != first


def test_accuracy_is_pass_at_1_and_the_largest_k_from_rows_and_summary():
    rows = [{"step": 5, "eval/pass@1": 0.3, "eval/pass@4": 0.5, "eval/pass@16": 0.9, "eval/pass@1_after_x": 1.0}]
    summary = {"steps": 9, "eval": {"before": {"pass@1": 0.2}, "after": {"pass@1": 0.4, "pass@16": None}}}
    assert _accuracies(rows, summary) == {"pass@1": {0: 0.2, 5: 0.3, 9: 0.4}, "pass@16": {5: 0.9}}
