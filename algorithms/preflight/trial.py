"""Answer a few problems before anything starts: what an environment or a reward function raises shows now."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from algorithms.config.errors import ConfigError, shown
from algorithms.rollout.failures import describe_error, one_line
from r3env.agents.types import Policy
from r3env.core import UNTRUSTED, Query, Reason, VerifiableEnv
from r3env.envs.agent import AgentEnv
from r3env.envs.function import FunctionEnv
from r3env.opening import finite_reward

PROBLEMS = 2
LIMIT_S = 60.0
OTHER_ANSWER = "I do not know."
DOUBTFUL = "LOOK AT verify: "


@dataclass(frozen=True)
class _Outcome:
    """What an environment made of an answer: the reward, whether one was found, or an error; empty: there was none.

    A rejected answer is given again for as long as the episode lasts.
    """

    uid: str
    answer: str
    reward: float = 0.0
    correct: bool = False
    error: str = ""
    found: bool = True


def try_out(
    environment: VerifiableEnv,
    uids: Sequence[str],
    limit_s: float = LIMIT_S,
    policy: Policy | None = None,
    *,
    reflects: bool = False,
    judges: bool = True,
) -> str:
    """Answer a few problems, each with its reference answer and with another text; return a line on the outcome.

    An agent solves one problem, and gets the reference answer for each of its requests; the other text only where it
    fails with that one.

    Args:
        environment: made already.
        uids: of its queries.
        limit_s: seconds after which to give up waiting, which is no error.
        policy: how the run lets an agent sample; None: without limits.
        reflects: whether the run begins episodes behind a failed attempt.
        judges: whether to judge answers: reward functions that actors hold are not made here.

    Raises:
        ConfigError: every answer failed, or no episode begins behind a failed attempt; the line names the setting, the
            function or environment, and its error.
    """
    if not uids:
        return ""
    chosen = uids[:1] if environment.takes_completions else uids[:: -(-len(uids) // PROBLEMS)]
    reflected = chosen[:1] if reflects and not environment.takes_completions else ()
    done, no_second, finished = _within(limit_s, environment, chosen if judges else (), policy or Policy(), reflected)
    if not finished:
        planned = 1 if environment.takes_completions else 2 * len(chosen)
        return f"{len(done)} of {planned} answers judged within {limit_s:g} s"
    failed = [one for one in done if one.error]
    if failed and len(failed) == len(done):
        raise ConfigError(_all_failed(environment, failed[0]))
    for error in no_second:
        fix = "take the options failed_attempt and attempt_feedback in reset, as VerifiableEnv does"
        raise ConfigError(f"environment.id: a second attempt, as in reflection, fails: {one_line(error)}; fix: {fix}")
    if not judges:
        return "not tried: reward functions are made in their actors (env_runners.reward_actor)"
    return _line(done, failed) + _not_found(environment, done[::2]) + _doubts(environment, done)


def _within(
    limit_s: float, environment: VerifiableEnv, judged: Sequence[str], policy: Policy, reflected: Sequence[str]
) -> tuple[list[_Outcome], list[str], bool]:
    """Answer the problems of `judged`, and begin a second attempt at those of `reflected`, within a time limit.

    Returns:
        The outcomes, the errors of second attempts, and whether all was done in time.
    """
    outcomes: list[_Outcome] = []
    errors: list[str] = []
    given_up = threading.Event()

    def work() -> None:
        for uid in judged:
            for outcome in _answered(environment, uid, policy):
                outcomes.append(outcome)
                if given_up.is_set():
                    return
        for uid in reflected:
            errors.extend(_second_attempt_fails(environment, uid))

    thread = threading.Thread(target=work, name="trial", daemon=True)  # which may never return
    thread.start()
    thread.join(limit_s)
    finished = not thread.is_alive()
    given_up.set()
    return list(outcomes), errors, finished


def sum_decides(environment: VerifiableEnv, uids: Sequence[str]) -> str:
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


def _answered(environment: VerifiableEnv, uid: str, policy: Policy) -> Iterator[_Outcome]:
    options = {"uid": uid, **({"policy": policy} if environment.takes_completions else {})}
    for answer in (None, OTHER_ANSWER):
        text, where = answer or "", "reference_response"
        try:
            text = environment.reference_response(environment.query(uid)) if answer is None else answer
            where = "reset"
            environment.reset(seed=0, options=dict(options))
            where = "step"
            results = [environment.step(text)]
            while _continues(environment, results):
                results.append(environment.step(text))
            yield _judged(uid, text, results)
            if environment.takes_completions:
                return
        except BaseException as error:  # the environment is the user's: it can raise anything, and may call exit()
            yield _Outcome(uid, text, error=describe_error(where, error))


def _continues(environment: VerifiableEnv, results: Sequence[tuple[Any, ...]]) -> bool:
    """Return whether another turn follows: an agent's next request, or another try."""
    _, _, terminated, truncated, info = results[-1]
    return "next_turn" in info or not (terminated or truncated or len(results) >= environment.max_turns)


def _second_attempt_fails(environment: VerifiableEnv, uid: str) -> Iterator[str]:
    """Return the error of an episode that begins behind a failed attempt, as in reflection; nothing: it begins."""
    try:
        options = {"uid": uid, "failed_attempt": OTHER_ANSWER, "attempt_feedback": "No answer."}
        text: Any = environment.reset(seed=0, options=options)[0]
        if not isinstance(text, str):
            yield f"reset: the user turn must be text, it is of type {type(text).__name__}"
    except BaseException as error:  # as above
        yield describe_error("reset", error)


def _judged(uid: str, answer: str, results: Sequence[tuple[Any, ...]]) -> _Outcome:
    info = results[-1][-1]
    reward = sum(finite_reward(each[1]) for each in results)
    if info.get("verdict") in UNTRUSTED:
        return _Outcome(uid, answer, error=str(info.get("feedback") or f"the verdict is {info['verdict']}"))
    found = info.get("verdict") != Reason.NO_ANSWER
    return _Outcome(uid, answer, reward, bool(info.get("correct", reward > 0)), found=found)


def _line(done: Sequence[_Outcome], failed: Sequence[_Outcome]) -> str:
    parts = []
    for name, own in (("reference answers", done[::2]), (f"{OTHER_ANSWER!r}", done[1::2])):
        if not own:
            continue
        judged = [one for one in own if not one.error]
        correct = sum(one.correct for one in judged)
        rewards = ", ".join(dict.fromkeys(f"{one.reward:g}" for one in judged))
        parts.append(f"{name}: {correct} of {len(own)} correct" + (f", reward {rewards}" if judged else ""))
    if failed:
        parts.append(f"{len(failed)} of {len(done)} FAILED: {one_line(failed[0].error)} on {shown(failed[0].answer)}")
    return "; ".join(parts)


def _not_found(environment: VerifiableEnv, references: Sequence[_Outcome]) -> str:
    """Say in how many reference answers no answer was found: no response could be correct."""
    without = [one for one in references if not one.found]
    if not without:
        return ""
    form = environment.answer_form(environment.query(without[0].uid))
    return f"; NO ANSWER FOUND in {len(without)} of the reference answers, looked for {form}"


def _doubts(environment: VerifiableEnv, done: Sequence[_Outcome]) -> str:
    """Say which judgments can hardly be meant; an environment without reference answers has none to go wrong."""
    wrong = [one for one in done[::2] if not (one.error or one.correct) and one.found]
    wrong = [one for one in wrong if environment.query(one.uid).answer]
    paid = [one for one in done[1::2] if one.correct]
    doubts = []
    if wrong:
        what = f"{len(wrong)} of {len(done[::2])} reference answers are graded incorrect"
        doubts.append(f"{what} ({shown(wrong[0].answer)} on problem {shown(wrong[0].uid)})")
    if paid:
        doubts.append(f"{OTHER_ANSWER!r} is graded correct (on problem {shown(paid[0].uid)})")
    return f"; {DOUBTFUL}{', and '.join(doubts)}" if doubts else ""


def _all_failed(environment: VerifiableEnv, first: _Outcome) -> str:
    fix = "`python -m r3env.inspect --gold`, with the same --env, --data and --option, shows it by itself"
    return (
        f"{_setting(environment, first.uid)}: every answer that was tried failed: {one_line(first.error)} "
        f"(problem {shown(first.uid)}); fix: {fix}"
    )


def _setting(environment: VerifiableEnv, uid: str) -> str:
    """Return the setting whose code judges a query."""
    judging, place, _ = _part(environment, uid)
    if isinstance(judging, FunctionEnv):
        return f"{place}.reward"
    return f"{place}.agent" if isinstance(judging, AgentEnv) and judging.agent is not None else "environment.id"


def _functions(environment: VerifiableEnv, uid: str) -> tuple[FunctionEnv, str, Query] | None:
    """Return the environment of reward functions that judges a query, where its settings are, and the query."""
    judging, place, query = _part(environment, uid)
    return (judging, place, query) if isinstance(judging, FunctionEnv) else None


def may_have_functions(environment: VerifiableEnv) -> bool:
    """Return whether reward functions may judge an environment, or a part: a user's may make one of ours within it."""
    if type(environment).__module__.partition(".")[0] != "r3env":
        return True
    parts: Mapping[str, VerifiableEnv] = getattr(environment, "parts", {})
    return isinstance(getattr(environment, "task", environment), FunctionEnv) or any(
        map(may_have_functions, parts.values())
    )


def _part(environment: VerifiableEnv, uid: str) -> tuple[VerifiableEnv, str, Query]:
    """Return the environment that judges a query, be it a part of a mixture, where its settings are, and the query."""
    query, place = environment.query(uid), "environment.options"
    parts: Mapping[str, VerifiableEnv] = getattr(environment, "parts", {})
    name, _, inner = uid.partition("/")
    if name in parts:
        environment, place = parts[name], f"{place}.environments.{name}.options"
        query = environment.query(inner)
    return getattr(environment, "task", environment), place, query
