"""Say why nothing is correct where most responses hold no answer: what was looked for, one response, the ways out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from algorithms.evaluation.responses import Response
from algorithms.rollout.conversation import last_text
from algorithms.rollout.types import Rollout, Split
from r3env.core import Reason
from r3env.printable import printable

LARGE = 0.5  # from this share of the responses on
FIRST_STEPS = 3  # later ones have learned something else than the form of an answer
_CHARACTERS = 120

Judged = TypeVar("Judged", bound=Response | Rollout)


def missing_answers(
    whose: str, responses: Sequence[Judged], text: Callable[[Judged], str], form: Callable[[Judged], str]
) -> str | None:
    """Return a line where no answer was found in most responses, else None.

    Args:
        whose: responses they are, to begin the line.
        responses: all of them.
        text: of a response, its last turn.
        form: what its environment looks for, in words.
    """
    without = [response for response in responses if response.verdict == Reason.NO_ANSWER]
    if not without or len(without) < LARGE * len(responses):
        return None
    truncated = sum(response.truncated for response in without)
    shown = next((response for response in without if not response.truncated), without[0])
    more = "raise env_runners.max_response_tokens for the truncated ones; " if 2 * truncated >= len(without) else ""
    return (
        f"{whose}: no answer was found in {len(without) / len(responses):.0%} of {len(responses)} responses "
        f'({truncated} of these {len(without)} truncated). Looked for {form(shown)}; one response ends "'
        f'{_ending(text(shown))}"; fix: {more}ask for that form in environment.instruction, read another one '
        "(environment.answer, or a reward function with environment.id=r3env/Function-v0), or start from a model that "
        "was fine-tuned on solutions in that form"
    )


def _ending(text: str) -> str:
    """Return the last characters of a text in one line, control characters escaped."""
    end = text[-_CHARACTERS:]
    line = printable(end).replace("\n", "\\n").replace("\t", "\\t")
    return line if len(end) == len(text) else f"…{line}"


class MissingAnswersWatch:
    """Returns that line once: after an evaluation or, where none came before, in the first steps.

    Args:
        environments: of training and evaluation.
        tokenizer: of the policy.
    """

    def __init__(self, environments: Mapping[Split, Any], tokenizer: Any) -> None:
        self._environments, self._tokenizer = environments, tokenizer
        self._told = self._evaluated = False

    def observe_step(self, step: int, rollouts: Sequence[Rollout]) -> str | None:
        """Take the rollouts of a step, counted from 1; return the line when it is due."""
        if self._evaluated or step > FIRST_STEPS:
            return None
        return self._observe(f"step {step}", rollouts, Split.TRAIN)

    def observe_evaluation(self, rollouts: Sequence[Rollout]) -> str | None:
        """Take the rollouts of an evaluation; return the line when it is due."""
        self._evaluated = True
        return self._observe("evaluation", rollouts, Split.EVALUATION)

    def _observe(self, whose: str, rollouts: Sequence[Rollout], split: Split) -> str | None:
        if self._told:
            return None
        environment = self._environments[split].unwrapped
        line = missing_answers(
            whose,
            rollouts,
            lambda rollout: last_text(rollout, self._tokenizer),
            lambda rollout: environment.answer_form(environment.query(rollout.uid)),
        )
        self._told = line is not None
        return line
