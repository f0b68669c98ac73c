"""A Gymnasium environment of text turns whose answers a verifier checks."""

import abc
import contextlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import gymnasium
from gymnasium.error import ResetNeeded

from r3env.queries import Queries, Query, QueryList, holds_instruction, variants_of
from r3env.spaces import UnicodeText
from r3env.spelling import nearest

__all__ = [
    "REFLECTION_GUIDANCE",
    "REFLECTION_STEPS",
    "UNTRUSTED",
    "Queries",
    "Query",
    "QueryList",
    "Reason",
    "Verdict",
    "VerifiableEnv",
]

_OPTIONS = ("uid", "failed_attempt", "attempt_feedback", "variant", "problem")

REFLECTION_STEPS = """\
The answer above is not correct. Before you answer again, work through these steps:
1. Locate the mistake: name the first step of the attempt that does not hold, or what it left unfinished.
2. Explain it: say why it fails, for example a condition misread, a formula misapplied, a slip in the \
arithmetic, an assumption without grounds.
3. Solve the problem afresh, from the beginning, in a way that avoids this mistake.
4. Check the new result against every condition of the problem.
"""

REFLECTION_GUIDANCE = REFLECTION_STEPS + "Put your final answer within \\boxed{}."


class Reason(StrEnum):
    """Why a verdict came out as it did."""

    EQUAL = "equal"
    DIFFERENT = "different"
    NO_ANSWER = "no_answer"
    TIMEOUT = "timeout"
    ERROR = "error"
    UNGRADED = "ungraded"


def reason_of(text: str) -> str:
    """Return the `Reason` of this text, or the text, a verifier's own words."""
    return Reason(text) if text in [*Reason] else str(text)


_ROUNDING = 1e-6
# Reasons after which nothing is known of the answer: its rollout leaves the group. `ungraded` is a verifier's own word.
UNTRUSTED = frozenset({Reason.TIMEOUT, Reason.ERROR, Reason.UNGRADED})


def reaches(reward: float, least: float) -> bool:
    """Return whether a reward is at least this one, except for rounding: weights of 0.7, 0.2 and 0.1 sum up to 1."""
    return reward >= least - _ROUNDING


@dataclass(frozen=True)
class Verdict:
    """A verifier's judgment of a response.

    Args:
        correct: Whether the answer is correct.
        reason: Why: a `Reason`, or other words.
        score: Partial credit; None where there is only correct and incorrect.
        feedback: Text about this turn, for per-turn credit; it is in the turn's info.
        answer: The final answer that was read from the response, which maj@k counts; None where it has none, or where
            answers are no such thing that a majority could give the same. Verdicts are equal whatever it is.
        rewards: What each of several parts of the reward is, by name, such as what each reward function returned; for
            metrics. Verdicts are equal whatever it is.
    """

    correct: bool
    reason: str
    score: float | None = None
    feedback: str = ""
    answer: str | None = field(default=None, compare=False)
    rewards: Mapping[str, float] = field(default_factory=dict, compare=False, hash=False)

    @property
    def trusted(self) -> bool:
        """Whether the verifier reached a judgment; after a timeout or an error nothing is known."""
        return self.reason not in UNTRUSTED


class VerifiableEnv(gymnasium.Env[str, str], abc.ABC):
    """Multi-turn text episodes about one query each, with a verified reward.

    An episode begins with a user turn and the policy answers. A rejected answer is met with feedback as the
    next user turn, until an answer is correct or `max_turns` are used up. A subclass writes `load_queries` and
    `verify`; `prompt`, `feedback` and `reward` have defaults.

    For per-turn credit an info may hold two texts more. `feedback`, in that of `step`, says what is wrong with the
    response (a `Verdict.feedback` gets there by itself); without it the next user turn stands for it.
    `state`, in that of `reset` and `step`, identifies the state that the next response starts from: turns of the same
    state are compared with each other.

    Where the policy may call tools, the info of `reset` has `tools`, which the chat template shows the policy; the info
    of `step` has `messages`, the turns of tools that follow in place of a user turn. Each has `role`, `name` and
    `content`. `counts`, in that of `step`, has numbers that are added up over an episode, by name; `calls` the calls of
    a response, each with the tool's name and its error, which is empty where there was none.

    Attributes:
        tools: what the info of `reset` has as `tools`: `{"type": "function", "function": {…}}` for each.
        takes_hint: whether `prompt` places `self.hint`, text that a method gives for this episode, by itself; else it
            is appended to the first user turn.
        max_episodes: episodes that an env runner begins at once; None: as many as it can.
        has_own_end: whether something else than `max_turns` ends an episode, so that it may have more turns.
        takes_completions: whether it runs an agent, as `r3env.envs.agent.AgentEnv` does: `reset` then takes the option
            `policy`, and the env runner calls `complete` in place of `step`.
    """

    takes_hint: bool = False
    takes_completions: bool = False
    max_episodes: int | None = None
    has_own_end: bool = False
    hint: str = ""
    tools: Sequence[Mapping[str, Any]] = ()

    def __init__(
        self,
        *,
        instruction: str = "",
        reflection_guidance: str = REFLECTION_GUIDANCE,
        max_turns: int = 1,
    ) -> None:
        """Make the environment; the queries are loaded when first needed.

        Args:
            instruction: Text that follows the problem in the first user turn; empty for none.
            reflection_guidance: The user turn after a rejected answer.
            max_turns: Answers that the policy may give in an episode.

        Raises:
            ValueError: `max_turns` is not a whole number of at least 1, or an argument that is text is not.
        """
        if isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1:
            raise ValueError(f"max_turns must be a whole number of at least 1, it is {max_turns!r}")
        for name, text in (("instruction", instruction), ("reflection_guidance", reflection_guidance)):
            if not isinstance(text, str):
                raise ValueError(f"{name} must be text, it is {text!r}")
        self.observation_space = UnicodeText()
        self.action_space = UnicodeText()
        self.instruction = instruction
        self.reflection_guidance = reflection_guidance
        self.max_turns = max_turns
        self._loaded: Queries | None = None
        self._current: Query | None = None
        self._turns_left = 0

    @abc.abstractmethod
    def load_queries(self) -> Sequence[Query] | Queries:
        """Return all queries; called once, when the first one is needed.

        Environments are made in numbers, one for each concurrent episode: where loading is not cheap, return a
        `Queries` that they share.
        """

    @abc.abstractmethod
    def verify(self, query: Query, response: str) -> Verdict:
        """Judge `response`, all that the policy wrote in this turn."""

    def prompt(self, query: Query) -> str:
        """Return the first user turn: the problem, then the instruction unless the query's turns hold one like it."""
        if not self.instruction or holds_instruction(query, self.instruction):
            return query.problem
        return f"{query.problem}\n\n{self.instruction}"

    def variant(self, query: Query, name: str) -> Query:
        """Return another form of a query, such as a choice of answers, to prompt and verify in its place.

        Raises:
            ValueError: the query has no such form.
        """
        variants = variants_of(query)
        if name not in variants:
            raise ValueError(f"query {query.uid!r} has no variant {name!r}; the nearest is {nearest(name, variants)}")
        return variants[name]

    def feedback(self, query: Query, response: str, verdict: Verdict) -> str:
        """Return the user turn after a rejected response; must not give the reference answer away."""
        return self.reflection_guidance

    def reference_response(self, query: Query) -> str:
        """Return a response with the reference answer in the form that `verify` reads, for people and self-checks."""
        return f"\\boxed{{{query.answer}}}"

    def same_answer(self, first: str, second: str) -> bool | None:
        """Return whether two final answers are the same, for majority votes; None if that takes too long to find out.

        By default spellings are compared; override it where one answer has several.
        """
        return first.strip() == second.strip()

    def answer_form(self, query: Query) -> str:
        """Return what `verify` looks for in a response, in words for people who wonder why it found no answer."""
        return "a final answer"

    def reward(self, query: Query, verdict: Verdict) -> float:
        """Return the verdict's score; without one 1.0 for a correct response and 0.0 for any other."""
        if verdict.score is not None:
            return verdict.score
        return 1.0 if verdict.correct else 0.0

    @property
    def queries(self) -> Queries:
        """All queries, loaded when first needed.

        Raises:
            ValueError: There are none, or two of the same uid.
        """
        if self._loaded is None:
            loaded = self.load_queries()
            if not loaded:
                raise ValueError(f"{type(self).__name__}.load_queries gave no queries")
            try:
                self._loaded = loaded if isinstance(loaded, Queries) else QueryList(loaded)
            except ValueError as error:
                raise ValueError(f"{type(self).__name__}.load_queries gave {error}") from None
        return self._loaded

    @property
    def uids(self) -> list[str]:
        """The uids of all queries, in the order of `load_queries`."""
        return list(self.queries)

    def query(self, uid: str) -> Query:
        """Return the query of this uid.

        Raises:
            ValueError: There is no such query.
        """
        queries = self.queries
        if isinstance(uid, str):
            with contextlib.suppress(KeyError):
                return queries[uid]
        raise ValueError(f"unknown uid {uid!r}; the nearest is {nearest(uid, queries)}")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: Seeds the sampling of queries, as in any Gymnasium environment.
            options: `uid` names the query (without it one is sampled). `failed_attempt` is an earlier response
                to it: the episode then begins with the turn after that response. `attempt_feedback` is the
                `feedback` of that response's info, which the verdict that `feedback` gets has again. `variant` names
                another form of the query, see `variant`. `problem` is a text in the place of the query's, for this
                episode alone: the answer stays the query's.

        Returns:
            The user turn, and an info with `uid`. `conversation` holds the turns before it, if any: those of the query,
            and after a `failed_attempt`, where the user turn is the reflection guidance, all up to that response.

        Raises:
            ValueError: An unknown uid, option key or variant, or an attempt that is not text.
        """
        options = options or {}
        known = (*_OPTIONS, "hint") if self.takes_hint else _OPTIONS
        for key in options:
            if key not in known:
                raise ValueError(f"unknown reset option {key!r}; the nearest is {nearest(key, known)}")
        self.hint = str(options.get("hint", ""))
        uid, attempt = options.get("uid"), options.get("failed_attempt")
        said = options.get("attempt_feedback", "")
        for name, text in (("failed_attempt", attempt), ("attempt_feedback", said)):
            if text is not None and not isinstance(text, str):
                raise ValueError(f"{name} must be text, it is of type {type(text).__name__}")
        named = None if uid is None else self.query(uid)
        super().reset(seed=seed)
        query = named or self._sample()
        if options.get("variant"):
            query = self.variant(query, str(options["variant"]))
        if options.get("problem"):
            query = replace(query, problem=str(options["problem"]))
        self._current, self._turns_left = query, self.max_turns
        info: dict[str, Any] = {"uid": query.uid}
        prompt = self.prompt(query)
        if attempt is None:
            return prompt, {**info, "conversation": tuple(query.turns)} if query.turns else info
        info["conversation"] = (*query.conversation(prompt), {"role": "assistant", "content": attempt})
        return self.feedback(query, attempt, Verdict(False, Reason.DIFFERENT, feedback=said or "")), info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Judge a response.

        Args:
            action: The policy's whole response.

        Returns:
            The next user turn (empty once the episode is over), the reward, terminated, truncated (always
            False: cutting a response off is the business of whoever generates it), and an info with `uid`,
            `correct`, `verdict` (the `Reason` as a string), and `feedback`, `answer` and `rewards` if the verdict has
            any.

        Raises:
            ResetNeeded: No episode is running.
            TypeError: The response is not text.
        """
        if self._current is None or self._turns_left == 0:
            raise ResetNeeded("no episode is running: call reset() before step()")
        if not isinstance(action, str):
            raise TypeError(f"a response must be text, it is of type {type(action).__name__}")
        query = self._current
        verdict = _as_verdict(self.verify(query, action))
        self._turns_left = 0 if verdict.correct else self._turns_left - 1
        terminated = self._turns_left == 0
        observation = "" if terminated else self.feedback(query, action, verdict)
        return observation, self.reward(query, verdict), terminated, False, self._step_info(query, verdict)

    def check_concurrency(self, episodes: int) -> None:
        """Refuse, before a run starts, what cannot hold so many episodes at a time; nothing is refused here.

        Raises:
            r3env.registry.OptionError: They do not fit; the error names the constructor's argument.
        """

    def abandon(self) -> None:
        """Let go of what the running episode holds, as it will not go on; may be called from another thread."""

    def _step_info(self, query: Query, verdict: Verdict) -> dict[str, Any]:
        info: dict[str, Any] = {"uid": query.uid, "correct": verdict.correct, "verdict": str(verdict.reason)}
        if verdict.feedback:
            info["feedback"] = verdict.feedback
        if verdict.rewards:
            info["rewards"] = dict(verdict.rewards)
        return info if verdict.answer is None else {**info, "answer": verdict.answer}

    def _sample(self) -> Query:
        queries = self.queries
        return queries[queries.uid_at(int(self.np_random.integers(len(queries))))]


def _as_verdict(given: Any) -> Verdict:
    """Return what `verify` gave, if it is a verdict."""
    if isinstance(given, Verdict):
        return given
    what = f"a {type(given).__name__}, {given!r:.80}"
    if inspect.iscoroutine(given):
        given.close()
        what = "a coroutine; fix: call what is asynchronous with asyncio.run, without async def"
    raise TypeError(f"verify must return a Verdict, such as Verdict(correct, Reason.EQUAL), it returned {what}")
