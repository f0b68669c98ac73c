"""Make the pages' figures and printed output: `make figures`, or `python -m website.figures [NAME …]`.

A page marks the place: `<!-- figure NAME -->` … `<!-- end -->`. The result of the figure's function replaces the text
between the marks; pictures are replaced, too. `cheap` figures come from committed records, and a test checks that they
are current. The others run something, and carry commit and machine.
"""

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from algorithms.utils.files import write_text
from website import benchmark_tables, laptop_tables, printed, recorded, suite_tables, tutorial
from website.printed import ROOT

IMAGES = ROOT / "docs" / "images"


@dataclass(frozen=True)
class Figure:
    """A part of a page that a script makes.

    Args:
        name: in the page's marks.
        page: below the project's folder.
        make: takes the folder of pictures; returns the Markdown.
        pictures: names of the files that `make` writes into that folder.
        cheap: whether it is made from committed records, in seconds and always the same.
    """

    name: str
    page: str
    make: Callable[[Path], str]
    pictures: tuple[str, ...] = ()
    cheap: bool = True

    def marked(self) -> re.Pattern[str]:
        """Match the part of the page, its content as group 2."""
        return re.compile(rf"(<!-- figure {re.escape(self.name)} -->\n)(.*?)(<!-- end -->)", re.DOTALL)

    def put(self) -> None:
        """Replace the part of the page.

        Raises:
            ValueError: the page does not have it exactly once.
        """
        page = ROOT / self.page
        content = self.make(IMAGES)
        text, count = self.marked().subn(lambda match: f"{match[1]}{content}\n{match[3]}", page.read_text("utf-8"))
        if count != 1:
            raise ValueError(f"{self.page}: has {count} parts <!-- figure {self.name} -->; it should have one")
        write_text(page, text)


README, REPORT, TUTORIAL = "README.md", "docs/guides/report.md", "docs/start/tutorial.md"
EVIDENCE, LOG = "docs/results/evidence.md", "docs/results/evidence-log.md"
BENCHMARKS = "docs/results/benchmarks.md"
EMBEDDED = "docs/start/embedded-model.md"
LAPTOP = "docs/start/laptop.md"
# Pages of benchmarks' tables that are not on the page of benchmarks.
ELSEWHERE = {
    "token_data": REPORT,
    "sharding": "docs/guides/large-models.md",
    "recovery": "docs/guides/rollouts.md",
    "history": "docs/operate/reliability.md",
    "architectures": "docs/reference/models.md",
}
FOUR = ("grpo", "grpo-slow", "dapo", "r3")
OURS_FIRST = ("r3", "grpo", "grpo-slow", "dapo")
WITHOUT = ("r3", "r3-no-ccr", "r3-no-isr", "r3-no-serr", "r3-paper", "grpo-slow")
THREE = ("grpo", "dapo", "r3")


def _logged(name: str, record: str, arms: Sequence[str], *pictures: str) -> Figure:
    """Return the figure of an ablation's levels and differences in the log."""
    make = partial(recorded.ablation, name=record, arms=arms, picture="".join(pictures))
    return Figure(name, LOG, make, pictures)


FIGURES = (
    Figure("quickstart", README, printed.quickstart, ("quickstart.png",), cheap=False),
    Figure("report", REPORT, printed.report, ("report.png", "report-tokens.png"), cheap=False),
    *(Figure(f"tutorial-{part}", TUTORIAL, partial(tutorial.shown, part=part), cheap=False) for part in tutorial.PARTS),
    Figure("laptop-in-short", README, laptop_tables.in_short),
    Figure("laptop-gains", LAPTOP, laptop_tables.gains_and_curves, ("laptop.png",)),
    Figure("laptop-runs", LAPTOP, laptop_tables.by_seed),
    Figure("laptop-kinds", LAPTOP, laptop_tables.by_kind),
    Figure("laptop-answers", LAPTOP, laptop_tables.answers),
    Figure("laptop-math", "docs/start/laptop-math.md", laptop_tables.math_sweep),
    Figure("suite-in-short", EVIDENCE, suite_tables.in_short, ("suite.png",)),
    Figure("suite-profiles", EVIDENCE, suite_tables.profiles, ("suite-profiles.png",)),
    *(Figure(f"suite-{axis}", EVIDENCE, partial(suite_tables.compared, axis=axis)) for axis in ("tokens", "cpu_s")),
    Figure("suite-parts", EVIDENCE, suite_tables.by_part),
    Figure("suite-parts-to-grpo", EVIDENCE, partial(suite_tables.by_part, reference="grpo")),
    Figure("suite-tasks", EVIDENCE, suite_tables.by_task),
    Figure("suite-ends", EVIDENCE, suite_tables.ends),
    Figure("suite-idle", EVIDENCE, suite_tables.idle),
    Figure("search", EVIDENCE, recorded.searches),
    Figure("controls", EVIDENCE, recorded.controls_and_picture, ("controls.png",)),
    Figure("recheck", LOG, recorded.recheck_output),
    Figure(
        "sums",
        LOG,
        partial(recorded.ablation_levels, name="sums", arms=FOUR, picture="evidence-first.png"),
        ("evidence-first.png",),
    ),
    Figure("sums-to-grpo", LOG, partial(recorded.ablation_differences, name="sums", arms=FOUR)),
    Figure("sums-to-r3", LOG, partial(recorded.ablation_differences, name="sums", arms=OURS_FIRST)),
    _logged("sums-fresh", "sums-fresh", OURS_FIRST),
    _logged("sums-mechanisms", "sums", WITHOUT, "evidence-sums.png"),
    _logged("words", "words", THREE),
    _logged("words-partial", "words-partial", ("grpo", "r3")),
    _logged("easy", "easy", THREE),
    Figure("bench-summary", BENCHMARKS, benchmark_tables.summary),
    *(
        Figure(f"bench-{name}", ELSEWHERE.get(name, BENCHMARKS), partial(benchmark_tables.tables, figure=name))
        for name in benchmark_tables.TABLES
    ),
    Figure("embedded-before", EMBEDDED, recorded.embedded_before),
    Figure("embedded-contexts", EMBEDDED, recorded.embedded_contexts),
    Figure("learning-rates", LOG, recorded.learning_rates),
    Figure("choices", LOG, partial(recorded.choices_of, part="choices")),
    Figure("choices2", LOG, partial(recorded.choices_of, part="choices2")),
)


def main() -> None:
    """Make the named figures, or all."""
    names = [figure.name for figure in FIGURES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"beginnings of {', '.join(names)}; default: all")
    parser.add_argument("--cheap", action="store_true", help="only those from committed records")
    arguments = parser.parse_args()
    chosen = [figure for figure in FIGURES if figure.name.startswith(tuple(arguments.names) or "")]
    if unknown := [name for name in arguments.names if not any(figure.startswith(name) for figure in names)]:
        parser.error(f"there is no {', '.join(unknown)}; fix: of {', '.join(names)}")
    printed.stamp()  # before a page changes, so that the commit is not dirty from the second figure on
    for figure in chosen:
        if figure.cheap or not arguments.cheap:
            print(f"{figure.name}: making it for {figure.page}", flush=True)
            figure.put()


if __name__ == "__main__":
    main()
