"""Check again what math-verify calls equal: it rounds to six decimals, and sets small numbers to zero."""

from fractions import Fraction
from typing import Any

from sympy import And, Eq, Expr, Float, Interval, MatrixBase, N, Rational, Set, Tuple, UnevaluatedExpr, simplify, solve
from sympy import FiniteSet as SympySet

from r3env.grading.plain_numbers import may_be_rounded

_DIGITS = 30
_ROUNDED_CLOSENESS = 1e-4
_EXACT_CLOSENESS = 1e-60  # SymPy evaluates a difference to 30 digits of its own, zero to about 100 of its terms'
_CARELESSNESS = 0.02  # people write 1/7 = 0.14
_PERCENT = UnevaluatedExpr(Rational(1, 100))


def is_false_positive(gold: Any, answer: Any) -> bool:
    r"""Return whether two expressions that math-verify calls equal are not.

    Numbers are compared again relative to their size: $10^{-7}$ is not 0, and $\sqrt{10^{40}+1}$ is not $10^{20}$; and
    exactly where no rounding is due. A false equation such as $7=5$ is no answer, and equations without a solution are
    not all the same equation.

    Args:
        gold: The SymPy expression of the reference answer.
        answer: That of the answer to judge.
    """
    if _false(answer):
        return True
    several = any(isinstance(one, Eq) and one.rhs.has(SympySet) for one in (gold, answer))  # x=1,2
    if isinstance(gold, Eq) and isinstance(answer, Eq) and not several:
        return _different_equations(gold, answer)
    gold, answer = _as_tuple(_right_side(gold)), _as_tuple(_right_side(answer))
    if isinstance(gold, (Tuple, SympySet)) and isinstance(answer, (Tuple, SympySet)):
        pairs = zip(_elements(gold, answer), _elements(answer, gold), strict=False)
        return any(_numbers_apart(one, other) for one, other in pairs)
    return _numbers_apart(gold, answer)


def _false(answer: Any) -> bool:
    """Return whether an equation, or one of a chain of them, says that two different numbers are equal."""
    equations = answer.args if isinstance(answer, And) else [answer]
    return any(isinstance(one, Eq) and _sides_apart(one.lhs, one.rhs) for one in equations)


def _sides_apart(left: Any, right: Any) -> bool:
    if not (_is_number(left) and _is_number(right)):
        return False
    if not (left.has(Float) or right.has(Float)):
        return _numbers_apart(left, right)
    return bool(abs(N(left - right)) > _CARELESSNESS * max(abs(N(left)), abs(N(right))))


def _right_side(expression: Any) -> Any:
    return expression.rhs if isinstance(expression, Eq) else expression


def _as_tuple(expression: Any) -> Any:
    if isinstance(expression, Interval):
        return Tuple(expression.start, expression.end)
    return Tuple(*expression.flat()) if isinstance(expression, MatrixBase) else expression


def _elements(these: Any, others: Any) -> list[Any]:
    if isinstance(these, Tuple) and isinstance(others, Tuple):
        return list(these)
    values = [_right_side(element) for element in these.args]
    if not all(_is_number(value) for value in values):
        return []
    return sorted(values, key=lambda value: (float(N(value).as_real_imag()[0]), float(N(value).as_real_imag()[1])))


def _numbers_apart(gold: Any, answer: Any) -> bool:
    if not (_is_number(gold) and _is_number(answer)):
        return False
    rounded = (gold.has(Float) or answer.has(Float)) and may_be_rounded(_exactly(gold), _exactly(answer))
    if not rounded:
        gold, answer = _without_floats(gold), _without_floats(answer)
    one, other = N(gold, _DIGITS), N(answer, _DIGITS)
    difference, size = abs(N(gold - answer, _DIGITS)), max(abs(one), abs(other))
    return bool(difference > size * Float(_ROUNDED_CLOSENESS if rounded else _EXACT_CLOSENESS))


def _exactly(number: Any) -> Fraction | None:
    """Return the value as a fraction, or None if it is irrational."""
    value = _without_floats(number).doit()
    if not isinstance(value, Rational):
        value = simplify(value)
    return Fraction(int(value.p), int(value.q)) if isinstance(value, Rational) else None


def _without_floats(number: Any) -> Any:
    return number.xreplace({value: Rational(str(value)) for value in number.atoms(Float)})


def _is_number(expression: Any) -> bool:
    if not isinstance(expression, Expr) or isinstance(expression, Set) or expression.free_symbols:
        return False
    # 9% equals 9 and 0.09: which one is meant is math-verify's business.
    return not expression.has(_PERCENT) and bool(expression.is_number) and bool(N(expression).is_finite)


def _different_equations(gold: Eq, answer: Eq) -> bool:
    try:
        if solve(gold, gold.free_symbols) and solve(answer, answer.free_symbols):
            return False
    except NotImplementedError:
        return False
    ratio = simplify((gold.lhs - gold.rhs) / (answer.lhs - answer.rhs))
    return not (ratio.is_number and ratio.is_finite and ratio.is_nonzero)
