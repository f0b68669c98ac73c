"""`r3env/ReasoningGym-v0`: any of the tasks that reasoning-gym generates, judged by its own scorers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from r3env.child_processes.process import ProcessDiedError, ProcessTamperedError, ProcessTimeoutError
from r3env.child_processes.subprocess_scorer import ScorerRaisedError, shared_scorer
from r3env.core import REFLECTION_STEPS, Queries, Query, Reason, Verdict, VerifiableEnv
from r3env.data.shared import load_shared
from r3env.data.sources import parse_spec
from r3env.envs.reasoning_gym_scoring import may_be_scored, runs_answers
from r3env.envs.reasoning_gym_tasks import GeneratedQueries, Task
from r3env.reasoning import visible_text

_SPEC_KEYS = ("seed", "size", "level")
_DEFAULT_TASK = "chain_sum"

# The tags are those of reasoning-gym's own prompts: its answers may be grids or lists of several lines.
TAGGED_INSTRUCTION = (
    "Please reason step by step, and put your final answer, and nothing else, between <answer> and </answer>, in "
    "exactly the format that the problem asks for."
)
TAGGED_REFLECTION_GUIDANCE = REFLECTION_STEPS + "Put your final answer between <answer> and </answer>."


class ReasoningGymEnv(VerifiableEnv):
    """Problems that are generated when they are needed, with partial credit.

    The reward is the score of the task's own scorer, from 0 to 1, and an answer counts as correct from `threshold`
    on. Scorers run in processes of their own and are killed at the deadline. Some would run what the policy wrote as
    code: they get only answers that `r3env.envs.reasoning_gym_scoring` lets through, and all others are wrong.
    """

    def __init__(
        self,
        data: str | None = None,
        *,
        task: str | Sequence[str] | None = None,
        size: int = 500,
        seed: int = 0,
        level: int | None = None,
        config: Mapping[str, Any] | None = None,
        threshold: float = 1.0,
        partial_credit: bool = True,
        instruction: str = TAGGED_INSTRUCTION,
        reflection_guidance: str = TAGGED_REFLECTION_GUIDANCE,
        max_turns: int = 1,
        grading_timeout_s: float = 5.0,
    ) -> None:
        """Make the environment; problems are generated when they are needed.

        Args:
            data: `TASK[,TASK…][#seed=…,size=…,level=…]` in one text, instead of `task`; what it says of the others
                overrides `seed`, `size` and `level`: so an evaluation can name other problems than the training.
            task: Name or names of tasks, as `reasoning_gym.factory.DATASETS` has them; without `data` and `task` it
                is `chain_sum`.
            size: Problems of each task.
            seed: Which problems; others for every seed.
            level: Level of the tasks' curriculum, from 0; None for each task's own defaults. Above the highest level
                the highest counts.
            config: Further fields of the task's configuration, such as `min_terms`, but not `seed` and `size`; with
                several tasks all of them must have these fields.
            threshold: Score from which an answer is correct.
            partial_credit: Whether the reward is the score; False: 1 for a correct answer, 0 for any other.
            instruction: Text that follows the problem; the final answer is read from the last `<answer>` tags after
                any thinking.
            reflection_guidance: The user turn after a wrong answer.
            max_turns: Answers that the policy may give in an episode.
            grading_timeout_s: Seconds that scoring one answer may take.

        Raises:
            ValueError: An argument is out of its range, `data` is not of this form, or both `data` and `task` name
                tasks.
        """
        super().__init__(instruction=instruction, reflection_guidance=reflection_guidance, max_turns=max_turns)
        if not grading_timeout_s > 0:
            raise ValueError(f"grading_timeout_s must be positive, it is {grading_timeout_s!r}")
        if not 0 < threshold <= 1:
            raise ValueError(f"threshold must be above 0 and at most 1, it is {threshold!r}")
        for key in ("seed", "size"):
            if config and key in config:
                raise ValueError(
                    f"config: {key!r} is an argument of its own; write {key}={config[key]!r} beside config"
                )
        if data is not None and task is not None:
            raise ValueError(f"both data={data!r} and task={task!r} name tasks; leave task out")
        task = _DEFAULT_TASK if task is None else task
        names = (task,) if isinstance(task, str) else tuple(task)
        wanted = Task("", seed, size, level, json.dumps(dict(config or {}), sort_keys=True))
        if data is not None:
            names, wanted = _parse_data(data, wanted)
        _check(wanted)
        self.tasks = tuple(replace(wanted, name=name) for name in names)
        self.threshold, self.partial_credit, self.grading_timeout_s = threshold, partial_credit, grading_timeout_s

    def load_queries(self) -> Queries:
        """Return the problems, shared with every environment of this process that wants the same ones."""
        return load_shared(self.tasks, lambda: GeneratedQueries(self.tasks))

    def verify(self, query: Query, response: str) -> Verdict:
        """Score the response's final answer by the task's own scorer."""
        answer = extract_tagged_answer(response)
        if answer is None:
            return Verdict(False, Reason.NO_ANSWER, 0.0)
        name, config, entry = cast(GeneratedQueries, self.queries).scorer_arguments(query.uid)
        if not may_be_scored(name, entry, answer):
            return Verdict(False, Reason.DIFFERENT, 0.0, answer=answer)
        maker = "r3env.envs.reasoning_gym_scoring:make_scorer"
        try:
            score = shared_scorer().call(
                maker,
                (name, config),
                entry,
                answer,
                timeout_s=self.grading_timeout_s,
                keep=not runs_answers(name, entry),
            )
        except ProcessTimeoutError:
            return Verdict(False, Reason.TIMEOUT)
        except ProcessDiedError:
            return Verdict(False, Reason.ERROR)
        except (ScorerRaisedError, ProcessTamperedError):
            score = 0.0  # some scorers raise over an answer that they cannot read
        correct = score >= self.threshold
        reason, paid = Reason.EQUAL if correct else Reason.DIFFERENT, score if self.partial_credit else None
        return Verdict(correct, reason, paid, answer=answer)

    def reference_response(self, query: Query) -> str:
        """Return the library's own answer between the tags; of some tasks it gives none."""
        return f"<answer>{query.answer}</answer>"

    def answer_form(self, query: Query) -> str:
        """Return the tags that the answer is read from."""
        return "a final answer between <answer> and </answer>"


def extract_tagged_answer(response: str) -> str | None:
    """Return the text of the last complete `<answer>` tags after any thinking, or None; "" is no answer either."""
    visible = visible_text(response)
    if visible is None:
        return None
    before, found, _ = visible.rpartition("</answer>")
    _, opened, answer = before.rpartition("<answer>")
    return answer.strip() or None if found and opened else None


def _parse_data(data: str, wanted: Task) -> tuple[tuple[str, ...], Task]:
    names, values = parse_spec(data, _SPEC_KEYS)
    changed: dict[str, Any] = {"name": "", **values}
    return tuple(name.strip() for name in names.split(",")), replace(wanted, **changed)


def _check(task: Task) -> None:
    for name, value, lowest in (("size", task.size, 1), ("seed", task.seed, 0), ("level", task.level, 0)):
        if value is not None and (not isinstance(value, int) or value < lowest):
            raise ValueError(f"{name} must be a whole number of at least {lowest}, it is {value!r}")
