"""Verdicts on answers: the whole way from response to reason."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3env.core import Reason, Verdict
from r3env.grading import MAX_ANSWER_CHARS, grade
from r3env.grading.fast_path import fast_equal

EQUAL = [
    # numbers and their spellings
    ("4", "4"), ("04", "4"), ("+4", "4"), ("4.0", "4"), ("4.", "4"), ("-0", "0"), (".5", "0.5"),
    ("\u22123", "-3"), ("\uff17", "7"), ("- 3", "-3"),
    ("1,000,000", "1000000"), (r"1\,000\,000", "1000000"), ("1{,}000{,}000", "1000000"), ("1 000", "1000"),
    (r"1,\!000", "1000"), ("1000", "1,000"), ("1,234.50", "1234.5"),
    ("123456789012345678901234567890", "123456789012345678901234567890"),
    # thousands apart by narrow spaces, or by commas that are drawn closer
    (r"11,\! 111,\! 111", "11111111"), (r"32,\! 349", "32349"), (r"12\!,\!345", "12345"), (r"1\, 000\, 000", "1000000"),
    (r"14 {, }916", "14916"), (r"14{,}\!916", "14916"), (r"1\text{,}000", "1000"), (r"1\thinspace 000", "1000"),
    (r"3.141\,592", "3.141592"), (r"x = 32,\! 349", "32349"), (r"2,\! 500\pi", r"2500\pi"),
    # text macros around units and words
    (r"125\textnormal{ miles}", "$125$ miles"), (r"125\textnormal{ miles}", "125"), (r"12\mbox{ cm}^2", "12"),
    (r"12\hbox{ cm}", r"12\text{ cm}"), (r"12\,\textup{cm}", "12"), (r"12\textsf{ cm}", r"12\mathsf{ cm}"),
    (r"12\emph{ apples}", "12"), (r"12{\rm\ cm}", "12"), (r"12\ \mathrm{cm^2}", r"12\text{ cm}^2"),
    (r"12\text{ cm$^2$}", "12"), ("12\\text{ cm\u00b2}", "12"), (r"9.8\,\mathrm{m/s^{2}}", "9.8"),
    (r"\textnormal{yes}", "Yes"), (r"\textnormal{(B)}", "B"), (r"\mbox{no solution}", "no solution"),
    (r"\textsc{Monday}", "Monday"),
    # trimmings
    ("$5$", "5"), (r"\(5\)", "5"), (r"\text{5}", "5"), (r"\mathrm{5}", "5"), (r"\$5", "5"), ("\u20ac5", "5"),
    (r"50\%", "50"), ("50%", r"50\%"), (r"90^\circ", "90"), (r"90^{\circ}", "90"), ("90\u00b0", r"90^\circ"),
    (r"90\degree", "90"), ("90 degrees", "90"), (r"12\text{ cm}", "12"), (r"12\ \mathrm{cm}^2", "12"),
    ("x = 5", "5"), ("x=5", "5"), ("5", "x=5"), (r"\theta = 5", "5"), ("x_1=5", "5"), (r"\approx 5", "5"),
    ("{5}", "5"), (r"{\frac{1}{2}}", "0.5"), (r"\fbox{5}", "5"), ("5", r"\boxed{5}"),
    ("E_1, E_2", "E_{1},E_{2}"), (r"\frac{\lambda_{\text{red}}}{\sqrt{2}}", r"\lambda_{\text {red}} / \sqrt{2}"),
    ("10^{-5}", "1e-5"), (r"10^{11}\text{ m}", "1e11"),
    (r"5 \text{ more apples}", "5"), (r"3 \text{ times}", "3"), ("3 apples left over", "3"),
    # derivatives; marks of feet and minutes are no more than that
    (r"f^{\prime}(x)", "f'(x)"), (r"y^{\prime\prime}", "y''"), ("f\u2032(x)", "f'(x)"), ("y + y'' = 0", "y'' + y = 0"),
    ("x_1' + 1", "1 + x'_1"), ("5'", "5"), ("\\text{Simpson\u2019s rule}", "Simpson's rule"),
    ("(1,2)", "x=1, y=2"), ("1, 2", "x=1, y=2"), ("y=2, x=1", "x=1, y=2"), ("2, 1", "x_1=1, x_2=2"),
    ("2,1", "x=1, x=2"),
    (r"\frac{1+\sqrt5}{2}, \frac{1-\sqrt5}{2}", r"x=\frac{1\pm\sqrt5}{2}"), (r"\frac{\pm 2}{3}", r"\pm\frac23"),
    ("f^{-1}(x)=x+1", "x+1"), ("x^{-1}(y+1)", r"\frac{y+1}{x}"),
    # text
    (r"\text{Monday}", "Monday"), (r"\text{(B)}", "B"), (r"\textbf{(A)}", r"\text{A}"),
    ("\\text{no  solution}", "no solution"), (r"\text{Even}", "even"),
    # mathematics
    (r"\frac{1}{2}", "0.5"), (r"\dfrac12", r"\frac{1}{2}"), (r"\frac{2}{4}", "1/2"), ("0.333333", "1/3"),
    (r"\sqrt{12}", r"2\sqrt{3}"), ("(x-1)(x+1)", "x^2-1"), ("1+x", "x+1"), (r"2^{10}", "1024"),
    (r"\binom{5}{2}", "10"), (r"1.5\times10^3", "1500"), (r"3\frac{1}{2}", "3.5"),
    (r"\varnothing", r"\emptyset"), ("y=1+2x", "y = 2x + 1"), (r"\pi", "3.14159265"), (r"10\%", "0.1"),
    # several values, as math-verify compares them
    (r"\{2,1\}", r"\{1,2\}"), ("2, 1", "1,2"), (r"7 \text{ or } 5", "5,7"), (r"\pm 2", "2,-2"),
    ("(3.0, 4)", "(3,4)"), (r"\left(1, 2, 3\right)", "(1,2,3)"), (r"(3,\infty)", "x>3"),
    (r"\begin{bmatrix}1&2\\3&4\end{bmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
]  # fmt: skip

DIFFERENT = [
    ("5", "4"), ("-4", "4"), ("4.1", "4"), ("0.33", "1/3"), ("123456788", "123456789"),
    ("123456789012345678901234567891", "123456789012345678901234567890"), ("1 2", "3"), ("5!", "5"),
    ("x=5", "y=5"), ("y", "x"), (r"\text{Tuesday}", "Monday"), ("B", "A"), ("three", "3"),
    ("(2,1)", "(1,2)"), ("(3,2,1)", "(1,2,3)"), (r"\{3,2,1\}", "(1,2,3)"), ("[0,1)", "[0,1]"),
    ("1,2,3", "1,2"), ("3, 5", "5"), (r"3 \text{ or } 5", "5"), ("x=5, y=6", "5"),
    (r"\frac{0}{0}", "5"), (r"\infty", "5"), (r"\foo{5}", "5"), ("there are 5 apples", "5"), (r"\,", "5"),
    (r"1,\! 23", "123"), (r"1,\! 234", "1235"), ("1, 234", "1234"), (r"1\quad 234", "1234"), (r"1,\! 234", "1, 235"),
    (r"12\textnormal{ cm}", r"12\mbox{ m}"), (r"12\mathrm{ cm^2}", r"12\text{ cm}^3"), (r"5\textnormal{ or more}", "5"),
    ("$5$ or more", "5"), ("5 more than 3", "5"), ("5 more or less", "5"), ("10^{-4}", "1e-5"),
    (r"5\mbox{ million}", "5"), (r"\textnormal{no}", "on"),
    ("f(x)", "f'(x)"), ("f'(x)", "f(x)"), ("f'(x)", "f''(x)"), (r"\alpha'", r"\alpha"), ("y=2x", "y'=2x"),
    ("x_1'", "x_1"), ("y' + 2y", "2y' + y"), (r"\mathbf{v}'", r"\mathbf{v}"), ("(f+g)(x)", "(f+g)'(x)"),
    (r"\triangle A'B'C'", r"\triangle ABC"),
    ("2, 1", "x=1, y=2"), ("(2,1)", "x=1, y=2"), ("3,2,1", "a=1,b=2,c=3"),
    (r"\frac{1+\sqrt5}{2}", r"\frac{1\pm\sqrt5}{2}"), (r"\frac{1}{f(x)}", "f^{-1}(x)"),
    ("x=4 | x=5", "5"), ("x=4 | x=5", "4"),
    ("((((5", "5"), ("1 - ", "1"), ("1, 2, ...", "1, 2"), ("12 7", "19"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "gold"), EQUAL)
def test_equal_answers(answer: str, gold: str) -> None:
    assert grade(f"Thus $\\boxed{{{answer}}}$.", gold) == Verdict(True, Reason.EQUAL)


@pytest.mark.parametrize(("answer", "gold"), DIFFERENT)
def test_different_answers(answer: str, gold: str) -> None:
    assert grade(f"Thus $\\boxed{{{answer}}}$.", gold) == Verdict(False, Reason.DIFFERENT)


@given(st.integers(-(10**27), 10**27), st.integers(-(10**27), 10**27))
def test_integers_are_equal_when_they_are(one: int, other: int) -> None:
    assert grade(f"\\boxed{{{one:,}}}", str(one)).correct
    assert grade(f"\\boxed{{{one}}}", str(other)).correct is (one == other)


@pytest.mark.parametrize("response", ["", "4", "\\boxed{4", "<think>\\boxed{4}</think>", "<think>\\boxed{4}"])
def test_no_answer(response: str) -> None:
    assert grade(response, "4") == Verdict(False, Reason.NO_ANSWER)


def test_an_overlong_answer_is_right_only_if_it_is_the_gold() -> None:
    long = "1+" * MAX_ANSWER_CHARS + "1"
    assert grade(f"\\boxed{{{long}}}", str(MAX_ANSWER_CHARS + 1)).reason is Reason.DIFFERENT
    assert grade(f"\\boxed{{{long}}}", long).correct


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("inf"), float("nan")])
def test_a_deadline_must_be_a_deadline(timeout_s: float) -> None:
    with pytest.raises(ValueError, match="timeout_s"):
        grade("\\boxed{4}", "4", timeout_s=timeout_s)


@pytest.mark.parametrize("unit", [" ", "1 ", "{", "$", "\\, ", "\\text{", "1,000", "x=", "~", "9"])
def test_plain_comparison_takes_linear_time(unit: str) -> None:
    answer = (unit * MAX_ANSWER_CHARS)[:MAX_ANSWER_CHARS]
    started = time.process_time()
    fast_equal("5", answer + "x")
    assert time.process_time() - started < 10, "an expression that tries every split takes hours"
