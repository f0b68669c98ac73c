"""Find regular expressions whose time grows faster than their text: read from the parsed pattern, not measured.

Two unbounded repeats that match the same characters, with nothing between them that a run of these could not pass,
divide such a run in as many ways as it is long: quadratic. A search is such a repeat itself, of any character; a
repeat in a repeat is followed by its own next iteration, which makes it exponential.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from re import _constants as c
from re import _parser

_MOST_VARIANTS = 500


@dataclass(frozen=True)
class Node:
    """A part of a pattern.

    Args:
        kind: `chars`, `repeat`, `branch` (also a group), `look` or `at`.
        chars: which sample characters match, of `chars`.
        parts: alternatives, each a sequence of nodes.
        low: repeats at least.
        high: repeats at most; None without a bound.
        atomic: whether nothing in it is tried again once it has matched.
        behind: whether a `look` is at what stands before.
        negative: whether a `look` fails where its content matches.
        at: the position.
    """

    kind: str
    chars: frozenset[str] = frozenset()
    parts: tuple[tuple["Node", ...], ...] = ()
    low: int = 1
    high: int | None = 1
    atomic: bool = False
    behind: bool = False
    negative: bool = False
    at: str = ""

    @property
    def unbounded(self) -> bool:
        return self.kind == "repeat" and self.high is None


Sequence_ = Sequence[Node]
_FAILURE = Node("at", at="nowhere")


def costly(pattern: str, flags: int = 0, *, anywhere: bool = True, whole: bool = False) -> str:
    """Return what makes a pattern slower than linear, "" where nothing does.

    Args:
        pattern: the regular expression.
        flags: as for `re.compile`.
        anywhere: whether it is searched for, not matched at the start.
        whole: whether all of the text has to match.
    """
    tree = _parser.parse(pattern, flags)
    letters = _SAMPLES | {chr(code) for code in _named(tree)}
    nodes = _Reader(frozenset(letters)).sequence(tree, tree.state.flags)
    if anywhere:
        nodes = (Node("repeat", parts=((Node("chars", frozenset(letters)),),), low=0, high=None), *nodes)
    if whole:
        nodes = (*nodes, _FAILURE)
    return next(_faults(nodes, ()), "")


# One of each kind of character that a class may tell apart; those that a pattern names come in addition.
_SAMPLES = {*map(chr, range(128)), *"\x85\xa0\xb2\xdf\xe9\u0663\u2013\u2028\u2060\u20ac\u2212\u3000\u4e2d\ufffd"}


def _named(tree: object) -> Iterator[int]:
    if isinstance(tree, tuple) and len(tree) == 2 and tree[0] in (c.LITERAL, c.NOT_LITERAL):
        yield tree[1]
    elif isinstance(tree, tuple) and len(tree) == 2 and tree[0] is c.RANGE:
        yield from tree[1]
    elif isinstance(tree, tuple | list | _parser.SubPattern):
        for one in tree:
            yield from _named(one)


class _Reader:
    """Turn a parsed pattern into nodes."""

    def __init__(self, letters: frozenset[str]) -> None:
        self._letters, self._groups = letters, dict[int | None, frozenset[str]]()

    def sequence(self, tree: object, flags: int) -> tuple[Node, ...]:
        return tuple(self._node(op, value, flags) for op, value in tree)

    def _node(self, op: object, value: object, flags: int) -> Node:
        if op in (c.LITERAL, c.NOT_LITERAL, c.ANY, c.IN):
            return Node("chars", self._chars(op, value, flags))
        if op in (c.MAX_REPEAT, c.MIN_REPEAT, c.POSSESSIVE_REPEAT):
            low, high, body = value
            bound = None if high is c.MAXREPEAT else high
            body = self.sequence(body, flags)
            return Node("repeat", parts=(body,), low=low, high=bound, atomic=op is c.POSSESSIVE_REPEAT)
        if op is c.SUBPATTERN:
            number, on, off, body = value
            group = Node("branch", parts=(self.sequence(body, (flags | on) & ~off),))
            self._groups[number] = _letters(group)
            return group
        if op is c.ATOMIC_GROUP:
            return Node("branch", parts=(self.sequence(value, flags),), atomic=True)
        if op is c.BRANCH:
            return Node("branch", parts=tuple(self.sequence(part, flags) for part in value[1]))
        if op is c.GROUPREF_EXISTS:
            return Node("branch", parts=tuple(self.sequence(part or (), flags) for part in value[1:]))
        if op in (c.ASSERT, c.ASSERT_NOT):
            body = self.sequence(value[1], flags)
            return Node("look", parts=(body,), behind=value[0] < 0, negative=op is c.ASSERT_NOT)
        if op is c.AT:
            multiline = flags & re.MULTILINE and value in (c.AT_BEGINNING, c.AT_END)
            return Node("at", at=f"{value}{'_LINE' if multiline else ''}")
        assert op is c.GROUPREF, f"a part of patterns that nobody has thought about: {op}"
        return Node("chars", self._groups[value])

    def _chars(self, op: object, value: object, flags: int) -> frozenset[str]:
        one = re.compile("", flags & (re.IGNORECASE | re.DOTALL | re.ASCII))
        tree = _parser.SubPattern(_state(one.flags), [(op, value)])
        matches = re._compiler.compile(tree, one.flags).fullmatch
        return frozenset(letter for letter in self._letters if matches(letter))


def _state(flags: int) -> _parser.State:
    state = _parser.State()
    state.flags, state.str = flags, ""
    return state


def _passes(nodes: Sequence_, run: frozenset[str]) -> bool:
    """Whether nodes can match within a run of these characters; nothing at all will do."""
    return all(_passes_one(node, run) for node in nodes)


def _passes_one(node: Node, run: frozenset[str]) -> bool:
    if node.kind == "chars":
        return bool(node.chars & run)
    if node.kind == "repeat":
        return node.low == 0 or _passes(node.parts[0], run)
    if node.kind == "branch":
        return any(_passes(part, run) for part in node.parts)
    if node.kind == "look":
        beside = _beside(node)
        return beside is None or bool(run - beside if node.negative else run & beside)
    if node.at in ("AT_BEGINNING_LINE", "AT_END_LINE"):
        return "\n" in run
    if node.at == "AT_BOUNDARY":
        return len({bool(re.match(r"\w", letter)) for letter in run}) == 2
    return node.at == "AT_NON_BOUNDARY"


def _beside(look: Node) -> frozenset[str] | None:
    """The characters right beside a position that a `look` allows, or refuses; None where it says more, or less."""
    nodes = look.parts[0]
    if not look.negative and len(nodes) > 1:
        nodes = nodes[-1:] if look.behind else nodes[:1]
    return _alternatives(nodes)


def _alternatives(nodes: Sequence_) -> frozenset[str] | None:
    """The characters that nodes match where they are one character long; None for others."""
    if len(nodes) != 1:
        return None
    if nodes[0].kind == "chars":
        return nodes[0].chars
    parts = [_alternatives(part) for part in nodes[0].parts] if nodes[0].kind == "branch" else [None]
    return None if None in parts else frozenset().union(*parts)


def _can_fail(nodes: Sequence_) -> bool:
    return any(
        not (node.kind == "repeat" and node.low == 0)
        and not (node.kind == "branch" and any(not _can_fail(part) for part in node.parts))
        for node in nodes
    )


def _letters(node: Node) -> frozenset[str]:
    return node.chars.union(*(_letters(one) for part in node.parts for one in part if one.kind != "look"))


def _loops(nodes: Sequence_) -> Iterator[tuple[Node, tuple[Node, ...], tuple[Node, ...], bool]]:
    """Every unbounded repeat with what stands before and behind it, and whether it is not tried again."""
    for place, node in enumerate(nodes):
        before, behind = tuple(nodes[:place]), tuple(nodes[place + 1 :])
        if node.unbounded:
            yield node, before, behind, node.atomic
        if node.kind == "look" and node.behind:
            continue  # of one length
        fails = (_FAILURE,) if node.kind == "look" and node.negative else ()
        for part in node.parts:
            for loop, inner, rest, atomic in _loops(part):
                yield loop, before + inner, rest + fails + behind, atomic or node.atomic or node.kind == "look"


def _faults(nodes: Sequence_, behind: tuple[Node, ...]) -> Iterator[str]:
    """What is slow in a sequence, given what stands behind it."""
    for place, node in enumerate(nodes):
        rest = (*nodes[place + 1 :], *behind)
        for first, _, after, atomic in () if node.kind == "look" else _loops((node,)):
            if not atomic:
                yield from _pairs(first, after, nodes[place + 1 :], behind)
        for part in node.parts:
            yield from _faults(part, rest)
            if node.kind == "repeat" and node.high != 1:
                for first, _, after, atomic in _loops(part):
                    if not atomic:
                        yield from _pairs(first, after, part, (*rest, _FAILURE))
        if node.unbounded and (twice := _read_twice(node.parts[0])):
            yield twice


def _pairs(first: Node, after: Sequence_, nodes: Sequence_, behind: Sequence_) -> Iterator[str]:
    for second, before, rest, _ in _loops(nodes):
        run = _letters(first) & _letters(second)
        gap = (*after, *before)
        bodies = _passes(first.parts[0], run) and _passes(second.parts[0], run)
        if run and bodies and _passes(gap, run) and _can_fail((*rest, *behind)):
            some = "".join(sorted(run, key=lambda letter: (not letter.isprintable(), letter)))[:12]
            yield f"two repeats divide a run of {some!r}"


def _read_twice(body: Sequence_) -> str:
    """Say whether the iterations of a repeat may be divided in two ways: one begins another, whose rest begins one."""
    variants = list(itertools.islice(_variants(body), _MOST_VARIANTS))
    for one, other in itertools.permutations(variants, 2):
        left = other[len(one) :]
        if len(one) <= len(other) and _agree(one, other) and (not left or any(_agree(left, any_) for any_ in variants)):
            return "an iteration may be read in two ways"
    return ""


def _agree(one: Sequence[frozenset[str]], other: Sequence[frozenset[str]]) -> bool:
    return all(a & b for a, b in zip(one, other, strict=False))


def _variants(nodes: Sequence_) -> Iterator[tuple[frozenset[str], ...]]:
    if not nodes:
        yield ()
        return
    node, *rest = nodes
    if node.kind in ("look", "at"):
        heads = [()]
    elif node.kind == "branch":
        heads = [head for part in node.parts for head in _variants(part)]
    elif node.kind == "repeat" and not node.unbounded:
        bodies = list(_variants(node.parts[0]))
        counts = sorted({node.low, node.low + 1, node.high} - {node.high + 1})
        heads = [sum(parts, ()) for n in counts for parts in itertools.product(bodies, repeat=min(n, 4))]
    elif node.low == 0:
        heads = [(), (_letters(node),)]
    else:
        heads = [(_letters(node),)]
    for head in heads:
        for tail in _variants(rest):
            yield (*head, *tail)
