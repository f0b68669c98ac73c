"""What the pages say of the third edition in words, against the records that it is from."""

import re

from benchmarks import laptop
from website.figures import EVIDENCE, README
from website.printed import ROOT

# A difference in points, with its ends. Those of the suite and of the planted key have three decimals and older code.
DIFFERENCE = re.compile(r"(?P<mean>[+-]\d+\.\d)(?: points)? \[(?P<low>[+-]\d+\.\d), (?P<high>[+-]\d+\.\d)\]")
FIGURE = re.compile(r"<!-- figure \S+ -->.*?<!-- end -->", re.DOTALL)
# Printed by a command that records nothing; the table is in words, and the page has the command.
SECOND_TURNS = re.compile(r"\*\*A second turn is not worth.*?\n## ", re.DOTALL)


def differences(text: str) -> set[tuple[float, float, float]]:
    found = DIFFERENCE.findall(text.replace("−", "-"))
    return {(float(mean), float(low), float(high)) for mean, low, high in found}


def test_every_difference_that_a_sentence_names_is_in_a_table_that_the_records_make():
    page, readme = ((ROOT / name).read_text("utf-8") for name in (EVIDENCE, README))
    recorded = differences("".join(FIGURE.findall(page)) + laptop.difference(laptop.read_records()))
    recorded |= {(-mean, -high, -low) for mean, low, high in recorded}  # the other way round
    said = differences(SECOND_TURNS.sub("", FIGURE.sub("", page))) | differences(FIGURE.sub("", readme))
    assert len(said) >= 10
    assert said <= recorded, said - recorded
