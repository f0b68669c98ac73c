"""The filter in front of the grader processes: it stops what is hopeless and nothing that people write."""

import time

import pytest

from r3env.grading import MAX_ANSWER_CHARS
from r3env.grading.cost import MAX_DEPTH, too_costly
from tests.r3env.grading_corpus import DIFFERENT, EQUAL

HOPELESS = [
    r"9^{9^9}", "9^9^9", "9^{9^{9}}", r"10^{10^{10}}", r"{10}^{{10}^{10}}", r"2^{2^{40}}", r"(10!)!", "10!!",
    r"(10^6)!",
    "1000000!", r"\binom{10^9}{5\cdot10^8}", r"\dbinom{1000000000}{500000000}", r"\sum_{i=1}^{10^9}i^i",
    r"\sum_{i=1}^{1000000}\frac1i", r"\prod_{k=2}^{10^7} k", r"\left(2^{10}\right)^{10^9}", r"5+9^{9^9}",
    r"\sqrt{9^{9^9}}",
    r"\frac{1}{9^{9^9}}", r"(3\times 10^8)^{3\times10^8}", "9^{10^{8}}", r"x^{10^{12}}", r"2^{100!}",
    "(" * 60 + "5" + ")" * 60,
    r"9^{9^9} \bmod 7", r"\text{the value } 9^{9^9}", "9 ^ 9 ^ 9", "x=9^{9^9}", r"(1, 9^{9^9})", r"\{9^{9^9}\}",
]  # fmt: skip
AFFORDABLE = [
    "5", r"2^{2024}", r"2024^{2024}", "100!", r"\frac{100!}{98!}", r"\binom{100}{50}", r"\sum_{i=1}^{100}i",
    r"x^{2024}",
    r"\sum_{k=0}^{\infty}\frac{1}{k!}", r"2^{10^5}", r"1^{10^{100}}", r"0^{10^{100}}", r"(-1)^{10^{12}}",
    r"10^{-30}", r"2^{1/1000000}",
    r"2^{\frac{1}{10^9}}", r"\frac{0}{0}", r"\frac{1}{0}", r"3 \times 10^{8}", r"6.02\times10^{23}", "n!",
    r"\binom{n}{k}", r"e^{e^x}",
    r"x^{x^x}", r"2^{2^{2^{2}}}", r"\sqrt{2}^{\sqrt{2}}", r"10^{100}", "", "{}", "^", "^^", "!", r"\frac", r"\sum",
    r"\binom{5}", "0!",
]  # fmt: skip


@pytest.mark.parametrize("answer", HOPELESS)
def test_the_hopeless_is_stopped(answer: str) -> None:
    assert too_costly(answer)


@pytest.mark.parametrize("answer", AFFORDABLE)
def test_the_affordable_passes(answer: str) -> None:
    assert not too_costly(answer)


def test_nothing_in_the_corpus_is_stopped() -> None:
    rows = [row for table in (EQUAL, DIFFERENT) for rows in table.values() for row in rows]
    assert [row for row in rows if too_costly(row[0]) or too_costly(row[1])] == []


def test_depth() -> None:
    assert not too_costly("(" * MAX_DEPTH + "5" + ")" * MAX_DEPTH)
    assert too_costly("[" * MAX_DEPTH + "(5)" + "]" * MAX_DEPTH)


@pytest.mark.parametrize(
    "unit", ["9^", "(", "{", "\\frac", "\\frac{1}", "\\sum_", "!", "1+", "\\binom", "x_", "(1)", "/"]
)
def test_it_takes_linear_time(unit: str) -> None:
    started = time.process_time()
    too_costly((unit * MAX_ANSWER_CHARS)[:MAX_ANSWER_CHARS])
    assert time.process_time() - started < 10, "an expression that tries every split takes hours"
