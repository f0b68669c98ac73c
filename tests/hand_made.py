"""What tests make by hand: answers of requests as a worker returns them, and small files of problems."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from algorithms.config.sections import TrainingSettings
from algorithms.grpo.samples import kl_term
from algorithms.learner.batch import TrainingSample
from algorithms.rollout.types import Request, Rollout
from r3env.data.loading import load_queries


def answer(request: Request, *, prompt: Sequence[int], response: Sequence[int], correct: bool, **more: Any) -> Rollout:
    """A rollout of a request, sampled with probability one; `more` are further fields of it, or others in place."""
    fields: dict[str, Any] = {"reward": float(correct), "truncated": False, "verdict": "", "weights_version": 0}
    return Rollout(
        request_id=request.id,
        uid=request.uid,
        group=request.group,
        context=request.context,
        tokens=np.array([*prompt, *response], np.int32),
        loss_mask=np.repeat([False, True], [len(prompt), len(response)]),
        sampling_logprobs=np.zeros(len(response), np.float32),
        correct=correct,
        **fields | more,
    )


def penalized(rows: Sequence[TrainingSample], beta: float) -> list[TrainingSample]:
    """The rows of an optimizer step with the KL penalty in their loss; replayed ones take no part."""
    penalty = kl_term(TrainingSettings(beta=beta))
    return [replace(row, terms={**row.terms, **penalty}) if row.on_policy else row for row in rows]


def small_pool(folder: Path, count: int) -> str:
    """A file of training problems of all lengths with their hints and forms, so few that queries come back soon."""
    queries = load_queries("embedded:train", columns={"hints": "hints", "variants": "variants"})
    chosen = queries[:: len(queries) // count][:count]
    path = folder / "pool.jsonl"
    rows = [{"uid": q.uid, "problem": q.problem, "answer": q.answer, **q.info} for q in chosen]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)
