"""What the figures draw, and in which colors."""

import itertools
import json

import numpy as np
import pytest
from matplotlib.figure import Figure

from benchmarks.looks import NAMED, TITLES, looks
from benchmarks.suite.figure import draw_curves, draw_profiles
from benchmarks.suite.records import read

from .simulated import suite


@pytest.fixture
def runs(tmp_path):
    file = tmp_path / "suite.jsonl"
    lines = suite({"grpo": 0.0, "r3": 0.1}, tasks=3, noise=0.03)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read(file)


@pytest.fixture
def drawn(monkeypatch):
    """The axes of each figure that was saved, with few dots."""
    found = []
    save = Figure.savefig

    def saved(figure, *args, **settings):
        found.append(figure.axes[0])
        save(figure, *args, **settings, dpi=20)

    monkeypatch.setattr(Figure, "savefig", saved)
    return found


def test_a_line_is_the_mean_of_all_runs_within_its_band(runs, drawn, tmp_path):
    path = draw_curves(runs, tmp_path / "curves.png", tokens=10_000, draws=200)
    assert path.read_bytes().startswith(b"\x89PNG")
    (axes,) = drawn
    assert axes.get_ylim()[0] == 0
    assert axes.get_xlim() == (0, 10_000)
    for line, band in zip(axes.lines, axes.collections, strict=True):
        title, count = line.get_label().rsplit(maxsplit=1)
        (arm,) = (arm for arm, called in TITLES.items() if called == title)
        own = [run for run in runs if run.arm == arm]
        assert count == f"({len(own)})"
        assert (line.get_color(), line.get_linestyle()) == NAMED[arm]
        x, y = line.get_data()
        # As many runs a task: the mean over tasks is that over runs. Nothing is smoothed at the start.
        assert y == pytest.approx(np.mean([np.interp(x, run.tokens, run.pass_at_1) for run in own], axis=0))
        band_x, band_y = band.get_paths()[0].vertices.T
        for point in (60, 120):
            ends = band_y[np.isclose(band_x, x[point])]
            assert ends.min() < y[point] < ends.max()


def test_every_task_weighs_the_same(runs, drawn, tmp_path):
    few = [run for run in runs if run.task != "task-0" or run.base < 2]
    draw_curves(few, tmp_path / "curves.png", tokens=10_000, draws=20)
    (line,) = (line for line in drawn[0].lines if line.get_label().startswith(TITLES["r3"]))
    ends = {
        task: [run.pass_at_1[-1] for run in few if (run.arm, run.task) == ("r3", task)]
        for task in {r.task for r in few}
    }
    assert line.get_ydata()[-1] == pytest.approx(np.mean([np.mean(values) for values in ends.values()]))


def test_a_profile_falls_from_all_runs_to_none(runs, drawn, tmp_path):
    draw_profiles(runs, tmp_path / "profiles.png", tokens=10_000, draws=50)
    assert {path.name for path in tmp_path.iterdir()} == {"profiles.png", "suite.jsonl"}
    for line in drawn[0].lines:
        share = line.get_ydata()
        assert share[0] == 1 and share[-1] == 0 and np.all(np.diff(share) <= 0)


def test_what_can_not_be_drawn_is_refused(runs, tmp_path):
    with pytest.raises(ValueError, match="before 20000"):
        draw_profiles(runs, tmp_path / "profiles.png", tokens=20_000)
    with pytest.raises(ValueError, match="single base"):
        draw_profiles([run for run in runs if run.base == 0], tmp_path / "profiles.png", tokens=10_000)
    assert not list(tmp_path.glob("*.png"))


def test_an_arm_looks_the_same_whatever_is_drawn_with_it():
    for arms in itertools.permutations(["r3", "mine", "grpo"], 3):
        found = looks(arms)
        assert list(found) == list(arms)
        assert (found["r3"], found["grpo"]) == (NAMED["r3"], NAMED["grpo"])
        assert found["mine"] not in NAMED.values()


def test_no_two_arms_of_a_figure_look_alike():
    assert len(set(NAMED.values())) == len(NAMED)
    assert len(set(looks([*NAMED, *(f"mine-{number}" for number in range(10))]).values())) == len(NAMED) + 10
