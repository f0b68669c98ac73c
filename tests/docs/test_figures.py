"""What pages show from committed records is what the records say."""

import pytest

from website.figures import FIGURES, ROOT, shortened


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.name)
def test_a_page_has_each_figure_once(figure):
    assert len(figure.marked().findall((ROOT / figure.page).read_text(encoding="utf-8"))) == 1


@pytest.mark.parametrize("figure", [figure for figure in FIGURES if figure.cheap], ids=lambda figure: figure.name)
def test_a_figure_from_records_is_current(figure, monkeypatch, tmp_path):
    monkeypatch.setattr("website.figures.IMAGES", tmp_path)
    (_, content, _) = figure.marked().search((ROOT / figure.page).read_text(encoding="utf-8")).groups()
    assert content.strip() == figure.make().strip(), f"run python -m website.figures {figure.name}"


def test_of_what_a_run_printed_a_few_steps_and_its_result_are_shown():
    printed = "starting\n" + "".join(f"step {n}/80  reward\n" for n in range(1, 81)) + "end\n  curves  runs/x\n"
    shown = shortened(printed).splitlines()
    assert [line.split()[0] for line in shown] == [*["step", "…"] * 2, "step", "end"]
