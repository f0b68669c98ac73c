"""What pages show from committed records is what the records say."""

import re

import numpy as np
import pytest
from matplotlib.image import imread

from website.figures import FIGURES, IMAGES, ROOT
from website.printed import shortened
from website.tutorial import between, first_of_each_verdict, lines_with

from .pages import PAGES, links, text_of

EVIDENCE = "docs/results/evidence.md"  # what made the pictures of its earlier editions is gone
CHEAP = [figure for figure in FIGURES if figure.cheap]


def name_of(figure):
    return figure.name


@pytest.mark.parametrize("figure", FIGURES, ids=name_of)
def test_a_page_has_each_figure_once(figure):
    assert len(figure.marked().findall(text_of(ROOT / figure.page))) == 1


def test_each_mark_has_a_figure():
    for page in PAGES:
        for name in re.findall(r"<!-- figure (\S+) -->", text_of(page)):
            assert any(figure.name == name and ROOT / figure.page == page for figure in FIGURES), (page, name)


def test_each_picture_that_a_page_shows_is_made_by_a_figure():
    made = {(ROOT / figure.page, IMAGES / name) for figure in FIGURES for name in figure.pictures}
    shown = {(page, page.parent / link) for page in PAGES for link in links(page) if link.endswith(".png")}
    frozen = {(ROOT / EVIDENCE, IMAGES / name) for name in ("suite.png", "controls.png")}
    assert {(page, picture.resolve()) for page, picture in shown} == made | frozen
    assert {picture for _, picture in made | frozen} == set(IMAGES.iterdir())


@pytest.mark.parametrize("figure", CHEAP, ids=name_of)
def test_a_figure_from_records_is_current(figure, tmp_path):
    (_, content, _) = figure.marked().search(text_of(ROOT / figure.page)).groups()
    assert content.strip() == figure.content(tmp_path).strip(), f"run python -m website.figures {figure.name}"
    assert {picture.name for picture in tmp_path.iterdir()} == set(figure.pictures)
    for name in figure.pictures:
        ours, committed = imread(tmp_path / name), imread(IMAGES / name)
        assert ours.shape == committed.shape
        # Another build of Matplotlib may place an edge otherwise; another curve changes more.
        assert np.mean(np.abs(ours - committed) > 0.1) < 1e-3, f"run python -m website.figures {figure.name}"


def test_of_what_a_run_printed_a_few_steps_and_its_result_are_shown():
    printed = "".join(f"step {n}/80  reward\n" for n in range(1, 81)) + "end\n  curves  runs/x\n"
    shown = shortened(printed, shown={1, 40, 80}).splitlines()
    assert [line.split()[0] for line in shown] == [*["step", "…"] * 2, "step", "end"]


def test_lines_that_are_left_out_leave_one_mark():
    assert lines_with("a\nb\nc1\nc2\nd\n", "^c") == "…\nc1\nc2\n…"


def test_the_first_table_is_cut_out():
    assert between("a\n┃ x\n└─\nb\n┃ y\n└─\n", "^┃", "^└") == "┃ x\n└─"
    assert between("a\nb\nc\n", "b", "") == "b"


def test_the_first_answer_of_each_verdict_is_shown():
    printed = "1+1\n-0.1 different 3\n-0.1 different 4\n+0.9 equal 2\n+0.9 equal 2\n"
    assert first_of_each_verdict(printed) == "1+1\n-0.1 different 3\n…\n+0.9 equal 2\n…"
