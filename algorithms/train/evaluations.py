"""The evaluations of a run: before, between and after its steps, and what becomes of one that fails."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import yaml

from algorithms.evaluation.sampling import Evaluation, held_out_sample
from algorithms.grpo.base import BaseAlgorithm
from algorithms.learner.group import LearnerDied
from algorithms.rollout.conversation import last_text
from algorithms.rollout.types import Split
from algorithms.utils.errors import InputError, RunError
from algorithms.utils.progress import Counter

# Answers that evaluation.json keeps, for people.
EXAMPLES = 10


def measure(algo: BaseAlgorithm, when: str, problems: str) -> Evaluation:
    """Evaluate the policy, and show how far that is.

    Args:
        algo: whose policy.
        when: it is, as in "before training".
        problems: which ones, for people.
    """
    settings = algo.config.evaluation_settings
    count = len(held_out_sample(algo.uids(Split.EVALUATION), settings.limit))
    with Counter(f"evaluating {when}: {count} {problems} problems × {settings.samples} answers") as counter:
        algo.on_evaluation_progress = counter.update
        algo.evaluate()
    algo.on_evaluation_progress = None  # evaluations between steps belong to the progress line
    assert algo.evaluation is not None
    return algo.evaluation


def to_stored(algo: BaseAlgorithm, evaluation: Evaluation) -> dict[str, Any]:
    """Return what evaluation.json keeps of an evaluation."""
    return {
        "step": algo.steps_done,
        "metrics": evaluation.metrics(),
        "correct": evaluation.share_correct(),
        "levels": _levels(algo, evaluation.uids),
        "examples": _examples(algo, evaluation),
    }


def to_tags(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return an evaluation's metrics as a step's row has them; RLlib's, a mapping beside them, are left out."""
    return {f"eval/{name}": value for name, value in metrics.items() if not isinstance(value, Mapping)}


def was_missed(rows: Sequence[Mapping[str, Any]], step: int, config_yaml: str) -> bool:
    """Return whether the evaluation between steps that was due after this one is missing: it failed.

    Args:
        rows: of metrics.jsonl up to the step.
        step: the last one.
        config_yaml: the settings that the step was made with.
    """
    interval = (yaml.safe_load(config_yaml).get("evaluation") or {}).get("interval") or 0
    if not rows or rows[-1]["step"] != step or not interval or step % interval:
        return False
    return not any(tag.startswith("eval/") for tag in rows[-1])


def _levels(algo: BaseAlgorithm, uids: Sequence[str]) -> dict[str, str]:
    """Map uids of held-out problems to their level, where it is known."""
    queries = algo.environments[Split.EVALUATION].unwrapped.queries
    return {uid: level for uid in uids if (level := queries[uid].level)}


def _examples(algo: BaseAlgorithm, evaluation: Evaluation) -> list[dict[str, Any]]:
    """Return the first answers to a few problems: `problem`, `response` (of several turns the last) and `correct`."""
    queries = algo.environments[Split.EVALUATION].unwrapped.queries
    firsts = {uid: answers[0].first for uid, answers in zip(evaluation.uids, evaluation.answers, strict=True)}
    return [
        {"problem": queries[uid].problem, "response": last_text(firsts[uid]), "correct": firsts[uid].correct}
        for uid in held_out_sample(evaluation.uids, EXAMPLES)
    ]


class EvaluationFailed(RunError):
    """An evaluation of a run failed; the steps before it are kept."""


@contextmanager
def naming_the_evaluation(when: str, how_to_resume: str) -> Iterator[None]:
    """Put the evaluation in front of an error's line, and behind it how to continue; a defect of ours stays as it is.

    Args:
        when: the evaluation was, as in "after step 3".
        how_to_resume: what to do once the cause is fixed.

    Raises:
        EvaluationFailed: in place of an error that its user can fix.
    """
    try:
        yield
    except LearnerDied:  # no evaluation's fault
        raise
    except (InputError, RunError) as error:
        raise EvaluationFailed(f"the evaluation {when} failed: {error}; then {how_to_resume}") from error
