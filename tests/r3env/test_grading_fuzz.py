"""Whatever an answer looks like, grading ends, with a verdict that it deserves."""

from collections.abc import Callable
from fractions import Fraction

from hypothesis import example, given, settings
from hypothesis import strategies as st

from r3env.core import Reason
from r3env.grading import grade
from r3env.grading.cost import too_costly
from r3env.grading.extraction import final_answer
from r3env.grading.fast_path import fast_equal, spelling_pair
from r3env.grading.normalization import clean

# No product, power, sum or rounding of what the soups are made of comes near it.
UNLIKELY = "-86028121/7919"
PIECES = (
    r"\frac{ \dfrac \sqrt{ \sqrt \binom{ \left( \right) \{ \} { } ( ) [ ] ^ ^{ _ _{ , ; = < > + - * / ! | & \\ \, $ %"
    r" \% \text{ \textbf{ \begin{pmatrix} \end{pmatrix} \cup \infty \pi \pm \cdot \times \circ \sum_{i=1}^ \int \le \in"
    r" x y i e a n sin cm and or 0 1 2 3 10 .5 1,000 \boxed{ \fbox{ </think>"
).split()
soups = st.lists(st.sampled_from([*PIECES, " "]), max_size=12).map("".join)
texts = st.text(max_size=60) | soups | st.text(alphabet="{}()[]\\^_!$,. 19x\u2212\u221a\ud800", max_size=60)


@given(texts, texts)
@example("\ud800", "\x00")
@settings(max_examples=500, deadline=None)
def test_no_text_crashes_what_runs_in_the_training_process(one: str, other: str) -> None:
    assert fast_equal(one, other) in (True, False, None)
    assert fast_equal(one, one) is (True if clean(one) else False)
    assert too_costly(one) in (True, False)
    spelling_pair(one, other)
    final_answer(one + other)


@given(soups)
@settings(max_examples=80, deadline=None)
def test_no_soup_is_credited_by_accident(soup: str) -> None:
    verdict = grade(f"\\boxed{{{soup}}}", UNLIKELY, timeout_s=1.0)
    assert verdict.reason in set(Reason) - {Reason.EQUAL}


@given(st.text(max_size=80))
@settings(max_examples=60, deadline=None)
def test_no_text_is_credited_by_accident(text: str) -> None:
    assert not grade(f"\\boxed{{{text}}}", UNLIKELY, timeout_s=1.0).correct


def spellings(value: Fraction) -> list[str]:
    """How people write a number; a finite decimal only if it has one."""
    above, below = value.numerator, value.denominator
    written = [f"\\frac{{{above}}}{{{below}}}", f"{above}/{below}", f"\\dfrac{{{2 * above}}}{{{2 * below}}}"]
    if below == 1:
        written += [
            f"{above}",
            f"{above:,}",
            f"{above}.0",
            f"x = {above}",
            f"\\text{{{above}}}",
            f"{above}\\text{{ cm}}",
        ]
        written += [f"{above:,}".replace(",", r"\,"), f"{above:,}".replace(",", "{,}"), f"$ {above} $", f"{above}."]
        written += [f"{above}".replace("-", "\u2212"), f"+{above}" if above >= 0 else f"- {-above}"]
    if 10**6 % below == 0:
        written += [f"{above / below:.6f}", f"{above / below:.6f}0"]
    return written


values = st.builds(Fraction, st.integers(-(10**7), 10**7), st.sampled_from([1, 1, 1, 2, 3, 7, 8, 100, 1000]))


@given(values, values, st.data())
@settings(max_examples=400, deadline=None)
def test_numbers_are_equal_in_every_spelling_and_only_then(one: Fraction, other: Fraction, data: st.DataObject) -> None:
    gold, answer, wrong = (data.draw(st.sampled_from(spellings(value))) for value in (one, one, other))
    assert grade(f"\\boxed{{{answer}}}", gold).correct
    assert grade(f"\\boxed{{{wrong}}}", gold).correct is (one == other)


@given(values, st.integers(1, 9), st.integers(0, 5), st.data())
@settings(max_examples=300, deadline=None)
def test_a_changed_digit_is_noticed(value: Fraction, change: int, place: int, data: st.DataObject) -> None:
    changed = value + change * Fraction(10) ** place
    gold, wrong = (data.draw(st.sampled_from(spellings(one))) for one in (value, changed))
    assert grade(f"\\boxed{{{wrong}}}", gold).reason is Reason.DIFFERENT


FORMS: list[Callable[[int, int], tuple[str, str]]] = [
    lambda a, b: (f"{a}\\sqrt{{{b}}}", f"\\sqrt{{{a * a * b}}}"),
    lambda a, b: (f"\\frac{{{a}\\pi}}{{{b}}}", f"\\pi\\cdot\\frac{{{2 * a}}}{{{2 * b}}}"),
    lambda a, b: (f"({a},{b})", f"\\left({a}.0, {b}\\right)"),
    lambda a, b: (f"\\{{{a},{b},0\\}}", f"0, {b}, {a}"),
    lambda a, b: (f"(x-{a})(x+{b})", f"x^2+({b}-{a})x-{a * b}"),
    lambda a, b: (f"y={a}x+{b}", f"y = {b} + {a}x"),
    lambda a, b: (f"[{a},{a + b}]", f"{a} \\le x \\le {a + b}"),
    lambda a, b: (f"{a}+{b}i", f"{b}i+{a}"),
]
numbers = st.integers(2, 60)


@given(st.sampled_from(FORMS), numbers, numbers, st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_mathematics_is_equal_in_another_form_and_only_then(
    form: Callable[[int, int], tuple[str, str]], a: int, b: int, change: int
) -> None:
    gold, same = form(a, b)
    other_gold, other = form(a, b + change)
    assert grade(f"\\boxed{{{same}}}", gold, timeout_s=20).reason is Reason.EQUAL
    assert grade(f"\\boxed{{{other}}}", gold, timeout_s=20).reason is Reason.DIFFERENT
    assert grade(f"\\boxed{{{same}}}", other_gold, timeout_s=20).reason is Reason.DIFFERENT
