"""Queries whose environment fails cost their own episodes, not the run; one that always fails ends it."""

import asyncio

import gymnasium
import pytest

from algorithms.rollout.types import EveryEpisodeFailed
from r3env.core import Query, Reason, Verdict, VerifiableEnv

from .runs_of import train


class Exiting(VerifiableEnv):
    """A query's uid says what verifying its answers does: a verifier that runs a policy's code may meet `exit()`."""

    ERRORS = {"exit": SystemExit(0), "canceled": asyncio.CancelledError(), "raises": RuntimeError("no such tool")}

    def __init__(self, only=("fine", "exit", "canceled", "raises"), **arguments):
        super().__init__(**arguments)
        self.only = only

    def reset(self, *, seed=None, options=None):
        self.second_try = "failed_attempt" in options
        return super().reset(seed=seed, options=options)

    def load_queries(self):
        return [Query(uid, "1+2", "3") for uid in self.only]

    def verify(self, query, response):
        if query.uid in self.ERRORS:
            raise self.ERRORS[query.uid]
        return Verdict(True, Reason.EQUAL)


gymnasium.register("Exiting-v0", Exiting)


def failing(config, **options):
    return (
        config.environment("Exiting-v0", data=None, instruction=None, env_config=options)
        .training(group_size=2, queries_per_step=1, minibatches=1)
        .evaluation(data=None, samples=2, k=[1])
    )


@pytest.mark.slow
def test_what_would_end_a_process_is_an_episodes_error(grpo_config, build):
    algorithm = build(failing(grpo_config).training(queries_per_step=4))
    (record,) = train(algorithm, 1)
    assert record["rollout/environment_errors"] == 6.0 and record["reward/correct"] == 1.0


def test_resampling_a_broken_query_only_does_not_end_the_run(grpo_config, build):
    """All answers of the fine query are correct: each step resamples the broken one in its place."""
    algorithm = build(failing(grpo_config, only=["fine", "raises"]).training(max_resample_rounds=3))
    records = train(algorithm, 2)
    assert all(record["rollout/environment_errors"] > 0 for record in records)


def test_an_evaluation_continues_where_every_second_try_fails(grpo_config, build, monkeypatch):
    monkeypatch.setattr(Exiting, "verify", _wrong_then_broken)
    algorithm = build(failing(grpo_config, only=["fine"]).evaluation(reflection=True))
    algorithm.evaluate()
    assert algorithm.evaluation.metrics()["pass@1_after_reflection"] == 0.0


def _wrong_then_broken(self, query, response):
    if self.second_try:
        raise RuntimeError("only once")
    return Verdict(False, Reason.DIFFERENT)


def test_a_step_in_which_every_episode_fails_ends_the_run_in_the_environments_words(grpo_config, build):
    algorithm = build(failing(grpo_config, only=["raises"]))
    with pytest.raises(EveryEpisodeFailed, match="every one of 2 episodes failed; the first: step: .*no such tool"):
        train(algorithm, 1)
