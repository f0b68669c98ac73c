"""Every case of the corpus gets its verdict, and the corpus is what it claims to be."""

from collections import defaultdict

import pytest

from r3env.core import Reason, Verdict
from r3env.grading import grade
from tests.r3env.grading_corpus import cases

FAMILIES: dict[str, list[tuple[str, str, Reason]]] = defaultdict(list)
for _family, *_case in cases():
    FAMILIES[_family].append(tuple(_case))


@pytest.mark.parametrize("family", FAMILIES)
def test_verdicts(family: str) -> None:
    judged = [(response, gold, grade(response, gold, timeout_s=20)) for response, gold, _ in FAMILIES[family]]
    right = [(response, gold, Verdict(reason is Reason.EQUAL, reason)) for response, gold, reason in FAMILIES[family]]
    assert judged == right


def test_every_gold_answer_equals_itself() -> None:
    golds = {gold for _, _, gold, reason in cases() if reason is Reason.EQUAL and "boxed" not in gold}
    assert [gold for gold in golds if not grade(f"\\boxed{{{gold}}}", gold).correct] == []


def test_there_are_enough_cases_and_none_twice() -> None:
    pairs = [(response, gold) for _, response, gold, _ in cases()]
    assert len(pairs) == len(set(pairs)) >= 500
    assert {reason for *_, reason in cases()} == {Reason.EQUAL, Reason.DIFFERENT, Reason.NO_ANSWER}
