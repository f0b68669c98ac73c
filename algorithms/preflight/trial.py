"""Answer a few problems before anything starts: what an environment or a reward function raises shows now."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from algorithms.config.errors import ConfigError, shown
from algorithms.rollout.failures import describe_error, one_line
from r3env.envs.function import FunctionEnv
from r3env.opening import finite_reward

if TYPE_CHECKING:
    from r3env.core import Query, VerifiableEnv

PROBLEMS = 2
LIMIT_S = 60.0
OTHER_ANSWER = "I do not know."
_UNTRUSTED = ("timeout", "error")


@dataclass(frozen=True)
class _Outcome:
    """What an environment made of an answer: the reward, or an error, which is empty where there was none."""

    uid: str
    answer: str
    reward: float = 0.0
    correct: bool = False
    error: str = ""


def try_out(environment: "VerifiableEnv", uids: Sequence[str], limit_s: float = LIMIT_S) -> str:
    """Answer a few problems, each with its reference answer and with another text; return a line on the outcome.

    Agents are not run: they need a policy.

    Args:
        environment: made already.
        uids: of its queries.
        limit_s: seconds after which to give up waiting, which is no error.

    Raises:
        ConfigError: every answer failed; the line names the setting, the function or environment, and its error.
    """
    if environment.takes_completions or not uids:
        return ""
    outcomes: list[_Outcome] = []
    chosen = uids[:: -(-len(uids) // PROBLEMS)]

    def work() -> None:
        for uid in chosen:
            outcomes.extend(_answered(environment, uid))

    thread = threading.Thread(target=work, name="trial", daemon=True)  # which may never return
    thread.start()
    thread.join(limit_s)
    done = list(outcomes)
    if thread.is_alive():
        return f"{len(done)} of {2 * len(chosen)} answers judged within {limit_s:g} s"
    failed = [one for one in done if one.error]
    if len(failed) == len(done):
        raise ConfigError(_all_failed(environment, failed[0]))
    return _line(done, failed)


def sum_decides(environment: "VerifiableEnv", uids: Sequence[str]) -> str:
    """Return a warning where several reward functions return numbers and nothing says which sum is correct.

    Args:
        environment: made already.
        uids: of its queries; of one of them the reference answer is judged.
    """
    found = _functions(environment, uids[0]) if uids else None
    if found is None or found[0].names_correct_at:
        return ""
    function, place, query = found
    if not function.sum_decides(query):
        return ""
    names = ", ".join(name.rpartition(":")[2] for name in function.names)
    return (
        f"{place}.reward: {names} all return numbers, so a response counts as correct where their weighted sum is at "
        f"least 1; fix: set {place}.correct_at to the sum that means solved, or return a bool from the one that decides"
    )


def _answered(environment: "VerifiableEnv", uid: str) -> Iterator[_Outcome]:
    for answer in (None, OTHER_ANSWER):
        text, where = answer or "", "reference_response"
        try:
            text = environment.reference_response(environment.query(uid)) if answer is None else answer
            where = "reset"
            environment.reset(seed=0, options={"uid": uid})
            where = "step"
            yield _judged(uid, text, environment.step(text))
        except BaseException as error:  # the environment is the user's: it can raise anything, and may call exit()
            yield _Outcome(uid, text, error=describe_error(where, error))


def _judged(uid: str, answer: str, result: tuple[Any, ...]) -> _Outcome:
    _, reward, _, _, info = result
    reward = finite_reward(reward)
    if info.get("verdict") in _UNTRUSTED:
        return _Outcome(uid, answer, error=str(info.get("feedback") or f"the verdict is {info['verdict']}"))
    return _Outcome(uid, answer, reward, bool(info.get("correct", reward > 0)))


def _line(done: Sequence[_Outcome], failed: Sequence[_Outcome]) -> str:
    parts = []
    for name, own in (("reference answers", done[::2]), (f"{OTHER_ANSWER!r}", done[1::2])):
        judged = [one for one in own if not one.error]
        correct = sum(one.correct for one in judged)
        rewards = ", ".join(dict.fromkeys(f"{one.reward:g}" for one in judged))
        parts.append(f"{name}: {correct} of {len(own)} correct" + (f", reward {rewards}" if judged else ""))
    if failed:
        parts.append(f"{len(failed)} of {len(done)} FAILED: {one_line(failed[0].error)} on {shown(failed[0].answer)}")
    return "; ".join(parts)


def _all_failed(environment: "VerifiableEnv", first: _Outcome) -> str:
    found = _functions(environment, first.uid)
    place = "environment.id" if found is None else f"{found[1]}.reward"
    fix = "`python -m r3env.inspect --gold`, with the same --env, --data and --option, shows it by itself"
    return (
        f"{place}: every answer that was tried failed: {one_line(first.error)} (problem {shown(first.uid)}); fix: {fix}"
    )


def _functions(environment: "VerifiableEnv", uid: str) -> "tuple[FunctionEnv, str, Query] | None":
    """Return the environment of reward functions that judges a query, where its settings are, and the query."""
    query, place = environment.query(uid), "environment.options"
    parts: Mapping[str, VerifiableEnv] = getattr(environment, "parts", {})
    name, _, inner = uid.partition("/")
    if name in parts:
        environment, place = parts[name], f"{place}.environments.{name}.options"
        query = environment.query(inner)
    task = getattr(environment, "task", environment)
    return (task, place, query) if isinstance(task, FunctionEnv) else None
