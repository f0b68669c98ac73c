"""`python -m r3env.inspect --env ID`: show what the policy sees, and how the grader judges an answer.

Exit codes: 0 shown, 2 wrong input, 130 interrupted.
"""

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from typing import Any

import r3env
from r3env.core import VerifiableEnv
from r3env.registry import make_env

_RULE = "─" * 80
_MOST_EPISODES = 1000


def main(arguments: Sequence[str] | None = None) -> int:
    """Print some episodes; the result is the exit code."""
    given = _parser().parse_args(arguments)
    try:
        env = _make_env(given)
        starts = _starts(env, given)
    except (ValueError, TypeError, ImportError) as error:
        print(" ".join(f"{given.env}: {error}".split()), file=sys.stderr)
        return 2
    for number, (observation, info) in enumerate(starts, start=1):
        print(f"{_RULE}\n{number}. uid {info['uid']}\n{_RULE}\n{observation}")
        if given.gold:
            _answer(env, info["uid"], env.reference_response(env.query(info["uid"])))
        if given.answer is not None:
            _answer(env, info["uid"], given.answer)
    env.close()
    return 0


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
    module, colon, _ = given.env.partition(":")
    if colon:
        importlib.import_module(module)  # for its error, which names the module
    return make_env(given.env, options)


def _starts(env: VerifiableEnv, given: argparse.Namespace) -> list[tuple[str, dict[str, Any]]]:
    if given.uid is not None:
        return [env.reset(options={"uid": given.uid})]
    first = env.reset(seed=given.seed)
    return [first, *(env.reset() for _ in range(given.n - 1))]


def _answer(env: VerifiableEnv, uid: str, answer: str) -> None:
    """Give the same answer until the episode is over."""
    env.reset(options={"uid": uid})
    over = False
    while not over:
        observation, reward, terminated, truncated, info = env.step(answer)
        over = terminated or truncated
        verdict = f"{info.get('verdict', '')} correct={info.get('correct')} reward={reward:g}"
        print(f"\n>>> {answer}\n<<< {verdict}{' (the end)' if over else ''}")
        if info.get("feedback"):
            print(f"feedback: {info['feedback']}")
        if not over:
            print(observation)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _episodes(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text[:5]) <= _MOST_EPISODES:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {_MOST_EPISODES}, it is {text!r}")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m r3env.inspect", description=__doc__.partition("\n")[0])
    parser.add_argument("--env", default=r3env.MATH_ID, help=f"Gymnasium id, or module:Id-v0 ({r3env.MATH_ID})")
    parser.add_argument("--n", type=_episodes, default=5, metavar="N", help="episodes to show, 1 to 1000 (5)")
    parser.add_argument("--seed", type=int, default=0, help="which queries are sampled (0)")
    parser.add_argument("--uid", help="show this query instead")
    parser.add_argument("--data", help="the environment's data, as in environment.data")
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
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
