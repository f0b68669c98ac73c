"""Mathematical equality of two answers; it may never return, so it runs in a process that can be killed."""

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from r3env.grading.fast_path import fast_equal, spelling_pair

_PARSED_ANSWERS = 4096


@dataclass(frozen=True)
class Comparison:
    """Whether two answers are equal, and whether one of them could not be read as mathematics."""

    equal: bool
    unread: bool = False


def compare(gold: str, answer: str) -> Comparison:
    """Compare `answer` with `gold`: plainly, or by math-verify with the gold as its first argument.

    The order of the elements of a list such as `1,2` counts as math-verify lets it count. An answer that it cannot
    read equals only its own spelling.

    Args:
        gold: The reference answer, without its box.
        answer: The answer to judge, without its box.
    """
    plainly = fast_equal(gold, answer)
    if plainly is not None:
        return Comparison(plainly)
    pair = spelling_pair(gold, answer)
    if pair is None:
        return Comparison(False)
    parsed_gold, parsed_answer = _parse(pair[0]), _parse(pair[1])
    unread = len(parsed_gold) < 2 or len(parsed_answer) < 2  # only the text itself, no expression
    # Its own timeouts are signal alarms, which fire too late inside one long operation on integers.
    equal = _math_verify().verify(
        _as_symbols(parsed_gold), _as_symbols(parsed_answer), timeout_seconds=None, allow_set_relation_comp=True
    )
    if equal and not unread:
        from r3env.grading.false_positives import is_false_positive

        equal = not is_false_positive(parsed_gold[0], parsed_answer[0])
    return Comparison(bool(equal), unread)


def _as_symbols(parsed: tuple[Any, ...]) -> list[Any]:
    # math-verify compares a symbol with anything else, such as x+0, and an intersection by how it is written.
    from sympy import Add, Intersection, Mul, Pow, Symbol

    def evaluated(expression: Any) -> Any:
        if isinstance(expression, Intersection):
            return expression.doit()
        if not isinstance(expression, (Add, Mul, Pow)) or len(expression.free_symbols) != 1:
            return expression
        value = expression.doit()
        return value if isinstance(value, Symbol) else expression

    return [evaluated(expression) for expression in parsed]


@lru_cache(maxsize=_PARSED_ANSWERS)
def _parse(answer: str) -> tuple[Any, ...]:
    # Both sides are known to be an answer and nothing else. With math-verify's looser patterns it would go on
    # to pick any number out of a text that it cannot read.
    library = _math_verify()
    parsed = library.parse(f"\\boxed{{{answer}}}", [_only_the_box()], parsing_timeout=None)
    return tuple(_with_named_derivatives(_with_imaginary_unit(expression, answer)) for expression in parsed)


def _with_imaginary_unit(expression: Any, text: str) -> Any:
    # The parser notices that i is not real, and then leaves it a symbol.
    from sympy import Basic, I, Symbol

    unit = Symbol("i", real=False)
    if isinstance(expression, Basic) and unit in expression.free_symbols and "_{i" not in text and "_i" not in text:
        return expression.subs(unit, I)
    return expression


def _with_named_derivatives(expression: Any) -> Any:
    # The derivative of one symbol by another would be zero.
    from sympy import Basic, Derivative, MatrixBase, Symbol

    if not isinstance(expression, (Basic, MatrixBase)):
        return expression
    derivatives = [(one, one.expr.free_symbols) for one in expression.atoms(Derivative)]
    named = {one: Symbol(str(one)) for one, names in derivatives if names and names.isdisjoint(one.variables)}
    return expression.xreplace(named) if named else expression


@cache
def _only_the_box() -> Any:
    from latex2sympy2_extended import NormalizationConfig

    # No units: it takes the t of 5t for one.
    spelling = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="all")
    return _math_verify().LatexExtractionConfig(
        boxed_match_priority=0, try_extract_without_anchor=False, normalization_config=spelling
    )


@cache
def _math_verify() -> Any:
    # Imported on first use: the parent process takes only the cheap comparison from this package.
    import logging

    import math_verify

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its timeouts are off
    return math_verify
