"""Boxes that stand together are one answer, the list in them; several guesses are paid no better than one."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from r3env.core import Reason
from r3env.grading import grade, statistics
from r3env.grading.extraction import final_answer

LISTS = [
    # joined by commas, "and", "or" and the delimiters of formulas
    (r"The roots are \boxed{3} and \boxed{-7}.", "-7, 3"),
    (r"\boxed{3}, \boxed{5}, \boxed{11}", r"\{3,5,11\}"),
    (r"\boxed{3}, \boxed{5}, and \boxed{11}", "3,5,11"),
    (r"$\boxed{3}$ or $\boxed{5}$", r"3 \text{ or } 5"),
    (r"\(\boxed{3}\) and \(\boxed{5}\)", "3,5"),
    ("\\[\\boxed{3}\\]\nand\n\\[\\boxed{5}\\]", "3,5"),
    (r"\[\boxed{3} \quad \text{and} \quad \boxed{5}\]", "5,3"),
    (r"\boxed{3}; \boxed{5}", "3,5"),
    ("\\boxed{3}\uff0c\\boxed{5}\u548c\\boxed{7}", "3,5,7"),
    (r"**\boxed{3}** and **\boxed{5}**", "3,5"),
    # with names
    (r"$x_1 = \boxed{3}$, $x_2 = \boxed{\frac12}$", r"\frac12, 3"),
    (r"$x_1 = \boxed{3}, \quad x_2 = \boxed{\frac12}$", r"x_1=3,\quad x_2=\frac12"),
    (r"$x = \boxed{3}$ or $x = \boxed{-3}$", r"\pm 3"),
    (r"$x = \boxed{3}$ or $x = \boxed{-3}$", "x = -3, x = 3"),
    (r"\begin{aligned} x &= \boxed{3}, \\ y &= \boxed{5} \end{aligned}", "(3,5)"),
    (r"$y = \boxed{5}$ and $x = \boxed{3}$", "x=3, y=5"),
    (r"$f(0) = \boxed{1}$ and $f(1) = \boxed{4}$", "1,4"),
    (r"$\alpha = \boxed{30^\circ}$, $\beta = \boxed{60^\circ}$", "60, 30"),
    (r"\boxed{k = 45} and \boxed{n = 2}", "k=45, n=2"),
    # elements of other kinds
    (r"\boxed{(1,2)} and \boxed{(2,1)}", "(2,1),(1,2)"),
    (r"\boxed{1,000} and \boxed{2,500}", "2500, 1000"),
    (r"\boxed{1} and \boxed{234}", r"\{1,234\}"),
    (r"\boxed{12\text{ cm}} and \boxed{5\text{ cm}}", "5, 12"),
    (r"\boxed{\text{blue}} and \boxed{\text{red}}", "red, blue"),
    (r"\boxed{C} and \boxed{A}", "A, C"),
    (r"\boxed{x^2-1} and \boxed{\sqrt{8}}", r"2\sqrt2, (x-1)(x+1)"),
    (r"\boxed{2} and \boxed{2}", "2,2"),
    # words about the earlier box
    (r"\boxed{3} chairs and \boxed{5} tables", "3,5"),
    (r"\boxed{3} chairs, \boxed{5} tables and \boxed{7} lamps", "3,5,7"),
    (r"$\boxed{3} \text{ in the first case and } \boxed{5}$", "3,5"),
    # the reference is in several boxes
    (r"\boxed{-7, 3}", r"\boxed{3} and \boxed{-7}"),
    (r"\boxed{3} and \boxed{-7}", r"\(\boxed{-7}\), \(\boxed{3}\)"),
    (r"\boxed{3, 5}", r"\boxed{3} chairs and \boxed{5} tables"),
    (r"\boxed{3, 5}", r"\boxed{3}\boxed{5}"),
    (r"\boxed{5}", r"\boxed{3}\boxed{5}"),
    (r"\boxed{2}", r"\boxed{2}, \boxed{2}"),
    # the same answer twice
    (r"\boxed{\frac12} or \boxed{0.5}", "1/2"),
    (r"\boxed{12}, or \boxed{12\text{ cm}}", "12"),
    (r"\boxed{(1,2)} or \boxed{(1, 2)}", "(1,2)"),
    # the last box counts
    (r"$a = \boxed{3}$ and $b = \boxed{4}$, so $a + b = \boxed{7}$.", "7"),
    (r"\boxed{3} and \boxed{4}. The sum is \boxed{7}.", "7"),
    (r"\boxed{3}, so the list is \boxed{3, 4}", "3,4"),
    (r"The radius is \boxed{3} and the area is \boxed{9\pi}", r"9\pi"),
    (r"\boxed{3}, giving a total of \boxed{5}", "5"),
    (r"$a = \boxed{3}$, $a^2 = \boxed{9}$", "9"),
    (r"(a) \boxed{3}, (b) \boxed{5}", "5"),
    (r"\boxed{3} \boxed{5}", "5"),
    (r"\boxed{3} seems too small, \boxed{5}", "5"),
    (r"$x = \boxed{3}$ or $x = \boxed{-3}$, but $x > 0$, so $\boxed{3}$", "3"),
    (r"<think>\boxed{3} and</think> \boxed{4}", "4"),
    (r"\boxed{} and \boxed{4}", "4"),
    (r"\boxed{3} and \boxed{4}, \boxed{5", "3,4"),
]

NO_LISTS = [
    # guesses
    (r"\boxed{3} or maybe \boxed{5} or \boxed{7}", "3"),
    (r"\boxed{3} or maybe \boxed{5} or \boxed{7}", "5"),
    (r"\boxed{3} or maybe \boxed{5} or \boxed{7}", "7"),
    (r"\boxed{3} or maybe \boxed{5} or \boxed{7}", "5,7"),
    (r"\boxed{3}, perhaps \boxed{5}, possibly \boxed{7}", "7"),
    (", ".join(f"\\boxed{{{n}}}" for n in range(100)), "99"),
    (", ".join(f"\\boxed{{{n}}}" for n in range(100)), "98, 99"),
    (r"\boxed{3} and \boxed{5}", "5"),
    (r"\boxed{3} chairs and \boxed{5} tables", "5"),
    (r"\boxed{3} \boxed{5}", "3,5"),
    (r"\boxed{\text{red}} or \boxed{\text{blue}}", "blue"),
    (r"\boxed{A}, \boxed{B}, \boxed{C}", "C"),
    (r"\boxed{(1,2)} or \boxed{(2,1)}", "(2,1)"),
    # too many, too few, another one
    (r"\boxed{3}, \boxed{5}, \boxed{7}", "3,5"),
    (r"\boxed{3}, \boxed{5}", "3,5,7"),
    (r"\boxed{3} and \boxed{6}", "3,5"),
    (r"\boxed{3} and \boxed{3}", "3,5"),
    (r"\boxed{3} chairs, \boxed{5} tables and \boxed{7} lamps", "3,5"),
    (r"\boxed{\text{blue}} and \boxed{\text{blue}}", "red, blue"),
    (r"\boxed{\text{blue}} and \boxed{\text{red}}", "blue, blue"),
    # the names or the order say otherwise
    (r"$x = \boxed{3}$ and $y = \boxed{5}$", "x=5, y=3"),
    (r"$x = \boxed{3}$ and $y = \boxed{5}$", "(5,3)"),
    # they do not stand together
    (r"\boxed{3}, no: \boxed{5}", "3,5"),
    (r"\boxed{3} no no no no \boxed{5}", "3,5"),
    (r"\boxed{3} or rather \boxed{5}", "3,5"),
    (r"\boxed{3}. And \boxed{5}", "3,5"),
    ("\\boxed{3}\n\n\\boxed{5}", "3,5"),
    (r"\boxed{3} fails and then \boxed{5}", "3,5"),
    (r"$x_1 = \boxed{3}$. " + "We go on with the other case. " * 5 + r"$x_2 = \boxed{5}$", "3,5"),
    (r"\boxed{3} and " + "very " * 20 + r"\boxed{5}", "3,5"),
    # numbers are not put together
    (r"\boxed{1} and \boxed{234}", "1,234"),
    (r"\boxed{1}\boxed{2}", "12"),
    (r"\boxed{2}, \boxed{3}", "5"),
]


@pytest.mark.parametrize(("response", "gold"), LISTS)
def test_boxes_that_stand_together_are_one_answer(response: str, gold: str) -> None:
    assert grade(response, gold, timeout_s=20).reason is Reason.EQUAL


@pytest.mark.parametrize(("response", "gold"), NO_LISTS)
def test_guesses_and_boxes_apart_are_no_list(response: str, gold: str) -> None:
    assert grade(response, gold, timeout_s=20).reason is Reason.DIFFERENT


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=6, unique=True), st.sampled_from([", ", " and ", "$ or $"]))
def test_no_number_of_guesses_is_the_answer(guesses: list[int], joint: str) -> None:
    response = joint.join(f"\\boxed{{{guess}}}" for guess in guesses)
    assert not any(grade(response, str(guess)).correct for guess in guesses)
    assert grade(response, ", ".join(map(str, reversed(guesses)))).correct


@pytest.mark.parametrize("first", [r"\boxed{3}", r"x = \boxed{3}", r"\boxed{3}\text{ m}", r"\boxed{3} or \boxed{4}"])
@pytest.mark.parametrize(
    "between", ["", " ", ", ", ";", "\n", "\n\n", " and ", " and also ", ". ", "; or ", ", say ", " (a) and (b) "]
)
@pytest.mark.parametrize("name", ["", "x = ", "y = ", "the sum is "])
def test_a_response_has_one_meaning(first: str, between: str, name: str) -> None:
    golds = ["5", "3", "3,5", "3,4", "3,4,5", "4,5", "x=3,y=5", "x=3"]
    response = f"{first}{between}{name}\\boxed{{5}}"
    met = [gold for gold in golds if grade(response, gold).correct]
    assert len(met) <= 1 or met == ["3,5", "x=3,y=5"], "two guesses for the price of one"


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        (r"\boxed{3} and \boxed{5}", "3, 5"),
        (r"$x=\boxed{3}$, $y=\boxed{5}$", "3, 5"),
        (r"\boxed{3}, \boxed{3}", "3"),
        (r"\boxed{3} \boxed{5}", "5"),
    ],
)
def test_the_final_answer_is_the_list(response: str, answer: str) -> None:
    assert final_answer(response) == answer


def test_a_hopeless_element_is_a_timeout_once() -> None:
    before = statistics()["screened"]
    assert grade(r"\boxed{9^{9^9}} or \boxed{8^{8^8}} or \boxed{x}", "5,6").reason is Reason.TIMEOUT
    assert statistics()["screened"] == before + 1


@pytest.mark.parametrize("unit", [r"\boxed{1}, ", r"\boxed{1} and x = ", r"\boxed{1}\alpha\beta", r"\boxed{1} a,"])
def test_many_boxes_are_read_in_linear_time(unit: str) -> None:
    started = time.process_time()
    grade(unit * 20_000 + r"\boxed{2}", "2")
    assert time.process_time() - started < 20, "linear takes a second, quadratic hours"
