"""Make the pages' figures and printed output: `make figures`, or `python -m website.figures [NAME …]`.

A page marks the place: `<!-- figure NAME -->` … `<!-- end -->`. The result of the figure's function replaces the text
between the marks; pictures are replaced, too. `cheap` figures come from committed records, and a test checks that they
are current. The others run something, and carry commit and machine.
"""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from algorithms.utils.files import write_text
from benchmarks import effects, evidence, laptop, laptop_math, trl_learning
from benchmarks.differences import doubts
from website import benchmark_tables, printed, recorded, tutorial
from website.printed import ROOT

IMAGES = ROOT / "docs" / "images"


@dataclass(frozen=True)
class Figure:
    """A part of a page that a script makes.

    Args:
        name: in the page's marks.
        page: below the project's folder.
        make: returns the Markdown; takes the folder of its pictures, if it has any.
        pictures: names of the files that `make` writes into that folder.
        cheap: whether it is made from committed records, in seconds and always the same.
    """

    name: str
    page: str
    make: Callable[..., str]
    pictures: tuple[str, ...] = ()
    cheap: bool = True

    def marked(self) -> re.Pattern[str]:
        """Match the part of the page, its content as group 2."""
        return re.compile(rf"(<!-- figure {re.escape(self.name)} -->\n)(.*?)(<!-- end -->)", re.DOTALL)

    def content(self, images: Path) -> str:
        """Return the Markdown; the pictures go into a folder."""
        return self.make(images) if self.pictures else self.make()

    def put(self) -> None:
        """Replace the part of the page.

        Raises:
            ValueError: the page does not have it exactly once.
        """
        page = ROOT / self.page
        content = self.content(IMAGES)
        text, count = self.marked().subn(lambda match: f"{match[1]}{content}\n{match[3]}", page.read_text("utf-8"))
        if count != 1:
            raise ValueError(f"{self.page}: has {count} parts <!-- figure {self.name} -->; it should have one")
        write_text(page, text)


README, REPORT, TUTORIAL = "README.md", "docs/guides/report.md", "docs/start/tutorial.md"
EVIDENCE = "docs/results/evidence.md"
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


def _of_laptop(table: Callable[[Sequence[laptop.Run]], str]) -> Callable[[], str]:
    return lambda: table(laptop.read_records())


def _of_regime(table: Callable[[Sequence[laptop.Run]], str], regime: str) -> str:
    return table(evidence.read(regime))


_THIRD: Mapping[str, Callable[[Sequence[laptop.Run]], str]] = {
    "doubts": doubts,
    "kinds": laptop.by_kind,
    "acting": evidence.acting,
    "costs": evidence.costs,
    "answers": partial(laptop.answers, arms=evidence.REFERENCES),
}


FIGURES = (
    Figure("quickstart", README, printed.quickstart, ("quickstart.png",), cheap=False),
    Figure("report", REPORT, printed.report, ("report.png", "report-tokens.png"), cheap=False),
    *(Figure(f"tutorial-{part}", TUTORIAL, partial(tutorial.shown, part=part), cheap=False) for part in tutorial.PARTS),
    Figure("laptop-in-short", README, _of_laptop(laptop.gains)),
    Figure("laptop-gains", LAPTOP, recorded.laptop_gains, ("laptop.png",)),
    Figure("laptop-runs", LAPTOP, _of_laptop(laptop.by_seed)),
    Figure("laptop-kinds", LAPTOP, _of_laptop(laptop.by_kind)),
    Figure("laptop-answers", LAPTOP, recorded.laptop_answers),
    Figure("laptop-math", "docs/start/laptop-math.md", lambda: laptop_math.table(laptop_math.read_records())),
    Figure("laptop-evidence", EVIDENCE, _of_laptop(laptop.gains)),
    *(
        Figure(f"third-{regime}", EVIDENCE, partial(recorded.third, regime=regime), (f"third-{regime}.png",))
        for regime in evidence.REGIMES
    ),
    *(
        Figure(f"third-{name}-{regime}", EVIDENCE, partial(_of_regime, table, regime))
        for name, table in _THIRD.items()
        for regime in evidence.REGIMES
    ),
    Figure("third-development", EVIDENCE, evidence.developed),
    Figure("effects", "docs/method/family.md", lambda: effects.table(laptop.read_records(effects.RECORDS))),
    Figure("trl-learning", BENCHMARKS, lambda: trl_learning.table(trl_learning.read())),
    Figure("bench-summary", BENCHMARKS, benchmark_tables.summary),
    *(
        Figure(f"bench-{name}", ELSEWHERE.get(name, BENCHMARKS), partial(benchmark_tables.tables, figure=name))
        for name in benchmark_tables.TABLES
    ),
    Figure("embedded-before", EMBEDDED, recorded.embedded_before),
    Figure("embedded-contexts", EMBEDDED, recorded.embedded_contexts),
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
