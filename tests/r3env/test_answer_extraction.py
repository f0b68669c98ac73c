"""Which part of a response is its final answer."""

import time

import pytest

from r3env.data.references import of_solution
from r3env.grading import grade
from r3env.grading.extraction import answer_in, final_answer, reference_boxes

CASES = [
    (r"So \boxed{5}.", "5"),
    (r"So \fbox{5}.", "5"),
    (r"\boxed {5}", "5"),
    (r"\boxed{ 5 }", "5"),
    (r"\boxed{3} or rather \boxed{4}", "4"),
    (r"\fbox{3} or rather \boxed{4}", "4"),
    (r"\boxed{3} or rather \fbox{4}", "4"),
    (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
    (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
    (r"\boxed{\left\{x\right.}", r"\left\{x\right."),
    ("\\boxed{\\begin{matrix}1\\\\2\\end{matrix}}", "\\begin{matrix}1\\\\2\\end{matrix}"),
    (r"\boxed{\fbox{5}}", "{5}"),
    (r"\boxed{x = \fbox{5}}", "x = {5}"),
    (r"\\boxed{5}", "5"),
    ("1\\\\\\boxed{5}", "5"),
    (r"a } stray \boxed{5} { brace", "5"),
    (r"\boxed{5} and then \boxed{6", "5"),
    (r"\boxed{5 and then \boxed{6}", "6"),
    (r"\frac{1 \boxed{7}", "7"),
    ("\\boxed{a\nb}", "a\nb"),
    # a minus sign before the box, and dashes
    (r"-\boxed{5}", "-5"),
    (r"So $-\boxed{5}$.", "-5"),
    (r"\(-\boxed{\frac{1}{2}}\)", r"-\frac{1}{2}"),
    (r"x = -\boxed{5}", "-5"),
    (r"\( -\boxed{5} \)", "-5"),
    ("x =\u2212\\boxed{x+1}", "-(x+1)"),
    (r"\[ -\boxed{-5} \]", "-5"),
    (r"$x = \boxed{1}$ or $x = -\boxed{2}$", "1, -2"),
    (r"The answer - \boxed{5}", "5"),
    (r"The answer -\boxed{5}", "5"),
    (r"answer: - \boxed{5}", "5"),
    (r"= - \boxed{5}", "5"),
    (r"- \boxed{5}", "5"),
    (r"3-\boxed{5}", "5"),
    (r"-\boxed{x = 5}", "x = 5"),
    (r"-\boxed{\text{No}}", r"\text{No}"),
    (r"-\boxed{B}", "B"),
    ("<think>\\boxed{1}</think> \\boxed{2}", "2"),
    ("\\boxed{1}</think>\\boxed{2}", "2"),
    ("<think>a</think><think>\\boxed{1}</think>\\boxed{2}", "2"),
    ("", None),
    ("It is 5.", None),
    (r"\boxed{5", None),
    (r"\boxed{\frac{1}{2}", None),
    (r"\boxed 5", None),
    (r"\boxed{}", None),
    (r"\boxed{ }", None),
    (r"\boxed{5} no, wait \boxed{}", None),
    (r"boxed{5}", None),
    (r"\boxedtext{5}", None),
    ("<think>\\boxed{5}", None),
    ("<think>\\boxed{5}</think> done", None),
    ("\\boxed{5}</think> done", None),
    ("<think>a</think> \\boxed{5} <think> hm", None),
    ("\\boxed{5}<think>", None),
]


@pytest.mark.parametrize(("response", "answer"), CASES)
def test_the_last_complete_box_after_the_thinking(response: str, answer: str | None) -> None:
    assert final_answer(response) == answer


@pytest.mark.parametrize(
    ("reference", "answer"),
    [
        (r"\boxed 7", "7"),
        (r"so $\boxed 72$.", "72"),
        (r"\boxed\frac{1}{2}", r"\frac{1}{2}"),
        (r"\fbox\frac12", r"\frac12"),
        (r"\boxed{\frac12}", r"\frac12"),
    ],
)
def test_a_box_of_a_reference_needs_no_braces(reference: str, answer: str) -> None:
    boxes = reference_boxes(reference)
    assert boxes is not None and answer_in(boxes) == answer
    assert grade(f"\\boxed{{{answer}}}", reference).correct
    assert of_solution(f"{'It is long. ' * 9}So it is {reference}") == answer


@pytest.mark.parametrize("unit", ["\\boxed{", "\\", "{", "}", "\\boxed ", "<think>", "</think>", "\\boxed{}{"])
def test_long_rubbish_is_read_in_linear_time(unit: str) -> None:
    started = time.process_time()
    assert final_answer(unit * (400_000 // len(unit))) is None
    assert time.process_time() - started < 20, "linear takes milliseconds, quadratic minutes"
