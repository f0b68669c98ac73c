"""Problems that a policy writes exist for their step: no history, replay or evaluation has them."""

import numpy as np
import pytest

from algorithms.grpo import algorithm as grpo
from algorithms.methods import svs
from algorithms.rollout.types import Context, Split
from tests.hand_made import small_pool

from .conftest import preset
from .test_whole_runs import resumed_exactly

MADE = {svs.WRITE, svs.PROBLEM}


@pytest.fixture
def configured(tmp_path, monkeypatch):
    """SvS, beside a replay that reads the history; the embedded model writes no problem: a sum stands in for it."""
    monkeypatch.setattr(svs.SvS, "_to_pose", pose_a_sum)
    pool = small_pool(tmp_path, 6)
    settings = ["training.mechanisms=[replay,svs]", "replay.groups=all", "replay.outcome=correct", "replay.k=2"]
    settings += [f"environment.data={pool}", "training.queries_per_step=6", "training.group_size=4", "svs.problems=2"]
    settings.append("env_runners.max_response_tokens=64")
    return lambda: preset("grpo", "training.beta=0", *settings)


def pose_a_sum(self, group):
    problem = self.services.query(group.prompt.uid).problem
    prompts = [svs.Prompt(group.prompt.uid, svs.PROBLEM, problem=f"0+{problem}") for _ in group.samples]
    self.writers |= {id(prompt): sample for prompt, sample in zip(prompts, group.samples, strict=True)}
    return prompts


@pytest.fixture
def made(monkeypatch):
    """Groups of written problems, and of their writing, once their steps have used them."""
    groups, update_history = [], grpo.GRPO.update_history

    def look(algorithm, batch):
        groups.extend(group for group in batch.rolled_out if group.prompt.context in MADE)
        update_history(algorithm, batch)

    monkeypatch.setattr(grpo.GRPO, "update_history", look)
    return groups


def test_a_written_problem_stays_in_its_step(build, configured, made, tmp_path):
    records, algorithm, _ = resumed_exactly(build, configured, tmp_path / "checkpoint", 2, 2)
    assert {group.prompt.context for group in made} == MADE and any(record["replay/added"] for record in records)
    assert not any(sample.replayed for group in made for sample in group.samples)
    posed = [
        sample.rollout.messages[0]["content"] for g in made if g.prompt.context == svs.PROBLEM for sample in g.samples
    ]
    assert posed and all(text.startswith("0+") for text in posed)
    data = algorithm.environments[Split.TRAIN].unwrapped.uids
    entries = [
        entry
        for uid in data
        for correct in (True, False)
        for entry in algorithm.history.sample_opposite_outcomes(
            uid, correct_group=correct, k=99, contexts="any", context=Context.PLAIN, rng=np.random.default_rng(0)
        )
    ]
    assert entries and {entry.context for entry in entries} == {Context.PLAIN}
    for environment in algorithm.environments.values():
        assert not any(query.problem.startswith("0+") for query in environment.unwrapped.queries.values())
