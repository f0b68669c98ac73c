r"""Estimate cheaply what an answer would cost to evaluate: `9^{9^9}` has more digits than memory has bits.

This only spares a grader process the deadline and the restart. It need not see everything: an answer that it lets
through is still killed when its time is up.
"""

import math
import re

MAX_DEPTH = 40
MAX_DIGITS = 1e6
MAX_FACTORIAL = 1e5
MAX_TERMS = 1e5

_OPENING, _CLOSING = "{([", "})]"
_TOKEN = re.compile(
    r"(?P<number>\d+(?:\.\d*)?|\.\d+)|(?P<fraction>\\[dtc]?(?:frac|binom))(?![a-zA-Z])"
    r"|(?P<sum>\\(?:sum|prod)|[\u2211\u220f])(?![a-zA-Z])"
    r"|(?P<skip>\\(?:left|right|cdot|times|[,;:! ])(?![a-zA-Z])|[*~$])"
    r"|(?P<divide>/|\\div(?![a-zA-Z]))|(?P<add>[-+])|\\(?:text|mathrm|mathbf|operatorname)\s*(?=\{)"
    r"|(?P<symbol>\\[a-zA-Z]+|\\[{}]|[a-zA-Z])|(?P<mark>[\s\S])"
)
_SPACE = re.compile(r"\s+")


class _TooCostlyError(Exception):
    """The value, or the way to it, is beyond the limits."""


def too_costly(answer: str) -> bool:
    """Return whether evaluating an answer would hopelessly overrun any deadline; takes linear time.

    It bounds the nesting depth and, roughly and from above, the digits of every power, factorial and binomial, and the
    number of terms of sums and products. What it does not know counts as a number of one digit.

    Args:
        answer: The content of the box.
    """
    if _depth(answer) > MAX_DEPTH:
        return True
    try:
        _Estimate(answer).total()
    except (_TooCostlyError, RecursionError):  # a tower as high as the stack is deep is costly too
        return True
    return False


def _depth(text: str) -> int:
    depth = deepest = 0
    for mark in re.findall(r"(?<!\\)[{}()\[\]]", text):
        depth = depth + 1 if mark in _OPENING else max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest


class _Estimate:
    """A recursive descent over the tokens; every method returns the decimal logarithm of a magnitude."""

    def __init__(self, text: str) -> None:
        self._tokens = [(str(t.lastgroup or "space"), t.group()) for t in _TOKEN.finditer(_SPACE.sub("", text))]
        self._at = 0

    def total(self) -> float:
        largest = -math.inf
        while self._at < len(self._tokens):
            largest = max(largest, self._sum())
            self._at += 1  # a stray closing bracket
        return largest

    def _peek(self) -> tuple[str, str]:
        while self._at < len(self._tokens) and self._tokens[self._at][0] in ("skip", "space"):
            self._at += 1
        return self._tokens[self._at] if self._at < len(self._tokens) else ("end", "")

    def _sum(self) -> float:
        """Terms up to a closing bracket or the end: those of a sum, of a list, the sides of a relation."""
        largest, terms = -math.inf, 0
        while True:
            kind, written = self._peek()
            if kind == "end" or written in _CLOSING:
                return largest + (math.log10(terms) if terms > 1 else 0.0)
            if kind == "add":
                self._at += 1
                continue
            before = self._at
            largest = max(largest, self._product())
            terms += self._at > before
            self._at += self._at == before  # a comma, an equals sign

    def _product(self) -> float:
        log, sign = 0.0, 1.0
        while True:
            kind, written = self._peek()
            if kind == "divide":
                self._at, sign = self._at + 1, -1.0
                continue
            if kind in ("end", "add") or written in (*_CLOSING, ",", ";", "=", "<", ">", "|", "&"):
                return _checked(log)
            log += sign * self._power()
            sign = 1.0

    def _power(self) -> float:
        """A base with its factorials and exponents."""
        log = self._atom()
        while True:
            written = self._peek()[1]
            if written == "!":
                self._at += 1
                log = _factorial(log)
            elif written == "_":
                self._at += 1
                self._atom()
            elif written == "^":
                self._at += 1
                log = _raised(log, self._exponent())
            else:
                return log

    def _exponent(self) -> float:
        if self._peek()[0] == "add":
            self._at += 1
        # Powers bind to the right: 9^9^9 is 9^(9^9).
        return self._power()

    def _atom(self) -> float:
        kind, written = self._peek()
        if kind == "end" or written in _CLOSING:
            return 0.0
        self._at += 1
        if kind == "number":
            return _log10(written)
        if written in _OPENING:
            inside = self._sum()
            self._at += 1
            return 0.0 if inside == -math.inf else inside
        if kind == "fraction":
            above, below = self._atom(), self._atom()
            return _binomial(above, below) if written.endswith("binom") else above - below
        if kind == "sum":
            return self._bounds()
        return 0.5 if kind == "symbol" else 0.0

    def _bounds(self) -> float:
        """Return the bounds of a sum or product, whose terms follow like any factor."""
        bound = 0.0
        while self._peek()[1] in ("_", "^"):
            self._at += 1
            bound = max(bound, self._atom())
        if _value(bound) > MAX_TERMS:
            raise _TooCostlyError
        return bound


def _checked(log: float) -> float:
    if abs(log) > MAX_DIGITS:
        raise _TooCostlyError
    return log


def _log10(number: str) -> float:
    value = float(number)
    if value == math.inf:
        return float(len(number))
    return math.log10(value) if value else 0.0  # zero counts as one: its powers are as cheap


def _value(log: float) -> float:
    return 10.0**log if log < 300 else math.inf


def _raised(base: float, exponent: float) -> float:
    return _checked(base * _value(exponent)) if base else 0.0  # inf * 0 for 1^{10^{400}} would be no number


def _factorial(log: float) -> float:
    value = _value(log)
    if value > MAX_FACTORIAL:
        raise _TooCostlyError
    return math.lgamma(value + 1) / math.log(10)


def _binomial(above: float, below: float) -> float:
    smaller = min(_value(above), _value(below))
    if smaller > MAX_FACTORIAL:
        raise _TooCostlyError
    return _checked(smaller * max(above, 0.0))
