"""A second look at what math-verify calls equal: it rounds to six decimals, and chops what is close to zero."""

from typing import Any

from sympy import Eq, Expr, Float, N, Rational, Set, Tuple, UnevaluatedExpr, simplify, solve
from sympy import FiniteSet as SympySet

_DIGITS = 30
_ROUNDED_CLOSENESS = 1e-4
_EXACT_CLOSENESS = 1e-60  # SymPy evaluates a difference to 30 digits of its own, zero to about 100 of its terms'
_PERCENT = UnevaluatedExpr(Rational(1, 100))


def credited_by_accident(gold: Any, answer: Any) -> bool:
    r"""Whether two expressions that math-verify calls equal are not.

    Numbers are compared again relative to their size: $10^{-7}$ is not 0, and $\sqrt{10^{40}+1}$ is not $10^{20}$.
    Equations without a solution are not all the same equation.

    Args:
        gold: The SymPy expression of the reference answer.
        answer: That of the answer to judge.
    """
    if isinstance(gold, Eq) and isinstance(answer, Eq):
        return _different_equations(gold, answer)
    gold, answer = _right_side(gold), _right_side(answer)
    if isinstance(gold, (Tuple, SympySet)) and isinstance(answer, (Tuple, SympySet)):
        pairs = zip(_elements(gold, answer), _elements(answer, gold), strict=False)
        return any(_numbers_apart(one, other) for one, other in pairs)
    return _numbers_apart(gold, answer)


def _right_side(expression: Any) -> Any:
    return expression.rhs if isinstance(expression, Eq) else expression


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
    one, other = N(gold, _DIGITS), N(answer, _DIGITS)
    difference, size = abs(N(gold - answer, _DIGITS)), max(abs(one), abs(other))
    rounded = gold.has(Float) or answer.has(Float)
    return bool(difference > size * Float(_ROUNDED_CLOSENESS if rounded else _EXACT_CLOSENESS))


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
