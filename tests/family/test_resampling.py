"""Dynamic sampling in whole steps: what is asked, trained on, counted and resumed."""

import math

import pytest
import torch

from algorithms.grpo.rollout_source import queries_needed
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.train.checkpoints import load_checkpoint, save_checkpoint
from tests.own_learners import policy_state

from .conftest import preset

SMALL = ("training.queries_per_step=6", "training.group_size=4", "training.minibatches=2")


def dapo(*overrides, config_class=None):
    extra = {} if config_class is None else {"config_class": config_class}
    return preset(
        "dapo", *SMALL, "env_runners.max_response_tokens=40", "training.max_resample_rounds=3", *overrides, **extra
    )


def weights(algorithm):
    return policy_state(algorithm.learner_group)[1]["default_policy"]


def steps(algorithm, count):
    """Train, and what each step recorded but wall times."""
    records = []
    for _ in range(count):
        algorithm.train()
        records.append({k: v for k, v in algorithm.batch.record.items() if not k.startswith(("time/", "throughput/"))})
    return records


def tokens_of(groups):
    return sum(s.rollout.response_length for group in groups for s in group.samples if not s.replayed)


def test_a_round_samples_what_the_share_of_informative_groups_lets_expect():
    assert queries_needed(16, 12, 16) == 6, "four more groups, of which three of four are informative"
    assert queries_needed(16, 1, 16) == queries_needed(16, 0, 16) == 16, "never more than are wanted"


def test_a_step_trains_on_informative_groups_and_counts_every_token(build):
    algorithm = build(dapo())
    generated, sampled, refills = 0, 0, 0
    for _ in range(2):
        algorithm.train()
        record = algorithm.batch.record
        assert len(algorithm.batch.groups) <= 6 and not any(group.homogeneous for group in algorithm.batch.groups)
        assert all(any(sample.advantage for sample in group.samples) for group in algorithm.batch.groups)
        sampled += int(record["rollout/prompts_expected"])
        assert record["rollout/prompts_expected"] == len(algorithm.batch.groups) + len(algorithm.batch.dropped)
        assert record["sampling/dropped_groups"] == len(algorithm.batch.dropped)
        generated += tokens_of(algorithm.batch.groups) + tokens_of(algorithm.batch.dropped)
        refills += record["sampling/refills"]
        everyone = [s for group in algorithm.batch.rolled_out for s in group.samples]
        correct = sum(s.rollout.correct for s in everyone) / len(everyone)
        assert record["reward/correct"] == pytest.approx(correct), "of all that was sampled, not of what was chosen"
    assert refills > 0 and algorithm.generated_tokens == generated
    assert algorithm.sampler.drawn == sampled, "the epoch continues behind what was sampled"


def test_every_response_of_a_step_has_a_seed_of_its_own(build):
    """Whatever the round: the step's own prompts, those that resample, follow-ups."""
    algorithm = build(dapo("env_runners.max_response_tokens=1"))  # teaches nothing: all rounds come
    seen, roll_out = [], algorithm.rollout_workers.rollout
    algorithm.rollout_workers.rollout = lambda requests, **keywords: seen.append(requests) or roll_out(requests)
    steps(algorithm, 1)
    requests = [request for each in seen for request in each]
    assert len(seen) == 4 and [request.id for request in requests] == list(range(4 * 6 * 4))
    assert len({request.seed for request in requests}) == len(requests)
    first, seen[:] = [request.seed for request in requests], []
    algorithm.steps_done = 0
    steps(algorithm, 1)
    assert [request.seed for each in seen for request in each] == first, "a function of the step and the round"


@pytest.mark.slow
def test_a_resumed_run_refills_as_the_uninterrupted_one(build, tmp_path):
    whole = build(dapo())
    steps(whole, 1)
    path = save_checkpoint(whole, tmp_path)
    expected = steps(whole, 2)
    resumed = build(dapo())
    load_checkpoint(resumed, path)
    assert steps(resumed, 2) == expected
    assert sum(record["sampling/refills"] for record in expected) > 0
    assert (resumed.sampler.drawn, resumed.generated_tokens) == (whole.sampler.drawn, whole.generated_tokens)
    assert all(torch.equal(tensor, weights(resumed)[name]) for name, tensor in weights(whole).items())


def test_a_task_that_teaches_nothing_ends_every_step_at_the_bound(build):
    algorithm = build(dapo("env_runners.max_response_tokens=1"))
    before = {name: tensor.clone() for name, tensor in weights(algorithm).items()}
    (record,) = steps(algorithm, 1)
    assert not algorithm.batch.groups and record["sampling/refills"] == 3
    assert record["sampling/dropped_groups"] == 4 * 6 and record["groups/solve_none"] == 1
    assert record["policy/trained_tokens"] == 0 and math.isfinite(record["policy/loss"])
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(algorithm).items())


def test_with_r3_what_is_dropped_is_remembered_and_what_replay_completes_is_kept(build):
    algorithm = build(dapo("ranking.enabled=false", "training.max_resample_rounds=1", config_class=R3GRPOConfig))
    kept_by_replay = 0
    for _ in range(3):
        history = {uid: algorithm.history.attempts(uid) for uid in algorithm.uids("train")}
        algorithm.train()
        for group in algorithm.batch.rolled_out:
            if group.prompt.attempt is None:
                fresh = sum(not sample.replayed for sample in group.samples)
                history[group.prompt.uid] += fresh
        assert {uid: algorithm.history.attempts(uid) for uid in history} == history
        for group in algorithm.batch.groups:
            fresh = {sample.rollout.correct for sample in group.samples if not sample.replayed}
            kept_by_replay += len(fresh) == 1
            assert len({sample.rollout.correct for sample in group.samples}) == 2
