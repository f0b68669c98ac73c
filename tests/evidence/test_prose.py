"""What the pages say of the third edition in words, against the records that it is from."""

import re

from benchmarks import laptop
from website.figures import EVIDENCE, README
from website.printed import ROOT

# A difference in points, with its ends, before which a line may end. Those of the suite and of the planted key have
# three decimals and older code.
DIFFERENCE = re.compile(r"(?P<mean>[+-]\d+\.\d)(?: points)?\s+\[(?P<low>[+-]\d+\.\d), (?P<high>[+-]\d+\.\d)\]")
FIGURE = re.compile(r"<!-- figure \S+ -->.*?<!-- end -->", re.DOTALL)
# Printed by a command that records nothing; the table is in words, and the page has the command.
SECOND_TURNS = re.compile(r"\*\*A second turn is not worth.*?\n## ", re.DOTALL)


def differences(text: str) -> set[tuple[float, float, float]]:
    found = DIFFERENCE.findall(text.replace("−", "-"))
    return {(float(mean), float(low), float(high)) for mean, low, high in found}


# Said the other way round than in the tables: R³ by entropy minus R³ flat.
TURNED = {(-3.6, -11.5, 4.3)}


def test_every_difference_that_a_sentence_names_is_in_a_table_that_the_records_make():
    page, readme = ((ROOT / name).read_text("utf-8") for name in (EVIDENCE, README))
    recorded = differences("".join(FIGURE.findall(page)) + laptop.difference(laptop.read_records()))
    assert TURNED <= {(-mean, -high, -low) for mean, low, high in recorded}
    for text in (SECOND_TURNS.sub("", page), readme):
        said = differences(FIGURE.sub("", text))
        assert said and said <= recorded | TURNED, said - recorded
