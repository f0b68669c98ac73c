"""Rollouts of the next step while the learners work: what lags, what does not, and what stays as it was."""

import os
import signal

import pytest
import ray

from algorithms.config.errors import ConfigError
from tests.own_learners import policy_state

from .conftest import requests_of, two_runners

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ahead(ray_session):
    algorithm = two_runners().training(max_off_policy_steps=1, minibatches=2).build_algo()
    yield algorithm
    algorithm.stop()


def test_from_the_second_step_on_rollouts_are_one_policy_behind(ahead):
    versions, lags, gaps = [], [], []
    for step in range(1, 4):
        before = ahead.rollout_workers.version
        ahead.train()
        sampled = {sample.rollout.weights_version for group in ahead.batch.groups for sample in group.samples}
        versions.append((before, *sampled))
        lags.append(ahead.batch.record["rollout/policy_lag"])
        gaps.append(ahead.batch.record["policy/logp_mismatch_max"])
        assert ahead.batch.record["rollout/prompts_completed"] == ahead.batch.record["rollout/prompts_expected"] == 6
        # Between steps nothing is in flight, and the runners hold the learners' weights.
        assert ahead.rollout_workers.version == policy_state(ahead.learner_group)[0]
        assert ahead.get_training_state()[1]["query_position"] == 6 * step
    assert lags == [0, 1, 1]
    first, *later = versions
    assert first[0] == first[1]
    for (held, sampled), (held_before, _) in zip(later, versions, strict=False):
        assert sampled == held_before < held
    assert gaps[0] < 1e-4 < min(gaps[1:])  # the engines' policy is another one than the learners'


def test_evaluation_between_steps_leaves_what_was_played_ahead(ahead):
    first = ahead.evaluate()
    assert ahead.evaluate() == first
    ahead.train()
    assert ahead.batch.record["rollout/policy_lag"] == 1


def test_a_runner_that_dies_meanwhile_is_given_the_weights_that_are_played_with(ahead):
    """The learners have others by then."""
    version = ahead.rollout_workers.version
    pid = ray.get(ahead.rollout_workers.supervisor.runners[1].handle.get_pid.remote())
    ahead.rollout_workers.start(requests_of(ahead, 600))
    os.kill(pid, signal.SIGKILL)
    ahead.update_policy(ahead.batch)
    rollouts = ahead.rollout_workers.finish()
    assert [rollout.request_id for rollout in rollouts] == list(range(600))
    assert {rollout.weights_version for rollout in rollouts} == {version}
    assert policy_state(ahead.learner_group)[0] > version
    ahead.sync_weights(ahead.batch)


def test_a_policy_that_does_not_change_is_trained_on_the_same_rollouts_either_way(config):
    """Same queries, same prompts, same seeds, whether they were played a step ahead or not."""
    drawn = []
    for lag in (0, 1):
        lagging = (
            config.copy(copy_frozen=False).env_runners(num_env_runners=lag).training(max_off_policy_steps=lag, lr=0.0)
        )
        algorithm = lagging.build_algo()
        for _ in range(3):
            algorithm.train()
        drawn.append([(g.prompt.uid, s.rollout.tokens.tolist()) for g in algorithm.batch.groups for s in g.samples])
        algorithm.stop()
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize(
    ("section", "setting", "value"),
    [
        ("env_runners", "num_env_runners", 0),
        ("training", "importance_cap", 0.0),
        ("training", "max_off_policy_steps", 2),
    ],
)
def test_what_does_not_go_with_a_lag_is_an_error_that_names_it(section, setting, value):
    with pytest.raises(ConfigError, match="training.max_off_policy_steps"):
        config = two_runners().training(max_off_policy_steps=1)
        getattr(config, section)(**{setting: value}).check_settings()
