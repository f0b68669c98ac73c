"""What a run writes of each step: its row of metrics, its rollouts, and conversations to read."""

from collections.abc import Mapping
from typing import Any

from algorithms.config.sections import RunSettings
from algorithms.grpo.base import StagedAlgorithm
from algorithms.rollout.types import Prompt, Split
from algorithms.train.evaluations import to_tags
from algorithms.train.recorder import Recorder
from algorithms.train.rollout_files import rollout_rows, sample_conversations, write_rollouts
from algorithms.train.run_directory import RunDirectory
from algorithms.train.token_pieces import TokenPieces


def step_row(algo: StagedAlgorithm, evaluation: Mapping[str, Any], wall_s: float) -> dict[str, Any]:
    """Return the row of the step that has ended: flat tag → number or text.

    Args:
        algo: that made the step.
        evaluation: metrics of the evaluation after it; empty where there was none.
        wall_s: seconds that the run has taken so far.
    """
    row = {"step": algo.steps_done, **algo.batch.record, "run/wall_s": wall_s}
    return row | to_tags(evaluation)


def record_step(
    algo: StagedAlgorithm,
    row: Mapping[str, Any],
    run: RunSettings,
    recorder: Recorder,
    directory: RunDirectory,
    pieces: TokenPieces | None,
) -> None:
    """Write the step that has ended: its row, its conversations and, with `run.save_rollouts`, its rollouts."""
    step, groups = algo.steps_done, algo.batch.groups
    if run.save_rollouts:
        rows = rollout_rows(step, groups, algo.tokenizer, pieces, lambda prompt: reference_answer(algo, prompt))
        write_rollouts(directory.rollout_file(step), rows)
    recorder.record(row)
    recorder.record_conversations(step, sample_conversations(groups, run.log_conversations, algo.tokenizer))


def reference_answer(algo: StagedAlgorithm, prompt: Prompt) -> str:
    """Return the reference answer to a prompt of training, in the form of the query that was posed."""
    environment = algo.environments[Split.TRAIN].unwrapped
    query = environment.query(prompt.uid)
    return str((environment.variant(query, prompt.variant) if prompt.variant else query).answer)
