"""Which part of a response is its final answer."""

import time

import pytest

from r3env.grading.extraction import final_answer

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


@pytest.mark.parametrize("unit", ["\\boxed{", "\\", "{", "}", "\\boxed ", "<think>", "</think>", "\\boxed{}{"])
def test_long_rubbish_is_read_in_linear_time(unit: str) -> None:
    started = time.process_time()
    assert final_answer(unit * (400_000 // len(unit))) is None
    assert time.process_time() - started < 20, "linear takes milliseconds, quadratic minutes"
