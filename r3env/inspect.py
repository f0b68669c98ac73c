"""`python -m r3env.inspect --env ID`: show what the policy sees, and how the grader judges an answer.

Exit codes: 0 shown, 2 wrong input, 130 interrupted.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import r3env
from r3env.core import VerifiableEnv
from r3env.data.sources import for_command, parse_columns
from r3env.named_functions import describe
from r3env.opening import NotRegisteredError, check_id, finite_reward, user_prompt
from r3env.printable import printable
from r3env.registry import make_env
from r3env.spelling import nearest
from r3env.streams import call

_RULE = "─" * 80
_MOST_EPISODES = 1000


def main(arguments: Sequence[str] | None = None) -> int:
    """Print some episodes; the result is the exit code."""
    given = _parser().parse_args(arguments)
    try:
        _show(given)
    except _InputError as error:
        print(printable(str(error)), file=sys.stderr)
        return 2
    return 0


class _InputError(Exception):
    """What the user gave cannot be used; the message is one line."""


def _show(given: argparse.Namespace) -> None:
    with _named(given, "the environment cannot be made"):
        env = _make_env(given)
    with contextlib.closing(env):
        with _named(given, "its problems cannot be read"):
            uids = env.uids
            for uid in uids:
                user_prompt(env, uid)
        with _named(given, "reset"):
            starts = _starts(env, given)
        for number, (observation, info) in enumerate(starts, start=1):
            _print(f"{_RULE}\n{number}. uid {info['uid']}\n{_RULE}")
            for turn in info.get("conversation", ()):
                _print(f"[{turn['role']}]\n{turn['content']}\n[end of turn]")
            _print(observation)
            if given.gold:
                with _named(given, "reference_response"):
                    reference = env.reference_response(env.query(info["uid"]))
                _answer(env, info["uid"], reference, given)
            if given.answer is not None:
                _answer(env, info["uid"], given.answer, given)


@contextlib.contextmanager
def _named(given: argparse.Namespace, where: str) -> Iterator[None]:
    """Turn whatever the user's environment raises into one line: where, what, and in which line of its code."""
    try:
        yield
    except (BrokenPipeError, _InputError):
        raise
    except (ValueError, ImportError) as error:
        raise _InputError(f"{given.env}: {for_command(error)}") from error
    except (Exception, SystemExit) as error:
        raise _InputError(f"{given.env}: {where}: {describe(error)}") from error


def _make_env(given: argparse.Namespace) -> VerifiableEnv:
    options: dict[str, Any] = {}
    for pair in given.option:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"--option {pair}: not of the form KEY=VALUE; fix: --option max_turns=2")
        options[key] = _value(value)
    if given.data is not None:
        if not given.data.strip():
            raise ValueError("--data is empty; fix: name the data, or leave --data out")
        options["data"] = given.data
    if given.column:
        options["columns"] = {**(options.get("columns") or {}), **parse_columns(given.column)}
    try:
        check_id(given.env)
    except NotRegisteredError as error:
        raise ValueError(f"is not registered; the nearest is {nearest(given.env, error.known)}") from None
    return make_env(given.env, options)


def _starts(env: VerifiableEnv, given: argparse.Namespace) -> list[tuple[str, dict[str, Any]]]:
    if given.uid is not None:
        return [env.reset(options={"uid": given.uid})]
    first = env.reset(seed=given.seed)
    return [first, *(env.reset() for _ in range(given.n - 1))]


def _answer(env: VerifiableEnv, uid: str, answer: str, given: argparse.Namespace) -> None:
    """Give the same answer until the episode is over."""
    with _named(given, "reset"):
        env.reset(options={"uid": uid})
    over = False
    while not over:
        with _named(given, "step"):
            observation, reward, terminated, truncated, info = env.step(answer)
            reward = finite_reward(reward)
        over = terminated or truncated
        verdict = f"{info.get('verdict', '')} correct={info.get('correct')} reward={reward:g}"
        _print(f"\n>>> {answer}\n<<< {verdict}{' (the end)' if over else ''}")
        if info.get("feedback"):
            _print(f"feedback: {info['feedback']}")
        if not over:
            _print(observation)


def _print(text: object) -> None:
    print(printable(str(text)))


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _seed(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 0, it is {text!r}")
    return int(text)


def _episodes(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text[:5]) <= _MOST_EPISODES:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {_MOST_EPISODES}, it is {text!r}")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m r3env.inspect", description=__doc__.partition("\n")[0])
    parser.add_argument("--env", default=r3env.MATH_ID, help=f"Gymnasium id, or module:Id-v0 ({r3env.MATH_ID})")
    parser.add_argument("--n", type=_episodes, default=5, metavar="N", help="episodes to show, 1 to 1000 (5)")
    parser.add_argument("--seed", type=_seed, default=0, help="which queries are sampled (0)")
    parser.add_argument("--uid", help="show this query instead")
    parser.add_argument("--data", help="the environment's data, as in environment.data")
    parser.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="OURS=THEIRS",
        help="map a column of the data, as in environment.columns; may be repeated",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="further constructor argument, as JSON or text; may be repeated",
    )
    parser.add_argument("--answer", help="a complete response to grade: '\\boxed{7}', '<answer>7</answer>'")
    parser.add_argument("--gold", action="store_true", help="grade the reference answer")
    return parser


if __name__ == "__main__":
    sys.exit(call(main))
