"""Queries whose environment fails cost their own episodes, not the run; one that always fails ends it."""

import asyncio
import logging
import re

import gymnasium
import pytest

from algorithms.rollout.failures import EpisodesFailed
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


class Calling(Exiting):
    """Makes a call of a tool in every episode, which fails."""

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, info | {"calls": [("search", "its server is gone")]}


gymnasium.register("Exiting-v0", Exiting)
gymnasium.register("Calling-v0", Calling)


def failing(config, **options):
    return (
        config.environment("Exiting-v0", data=None, instruction=None, env_config=options)
        .training(group_size=2, queries_per_step=1, minibatches=1)
        .evaluation(data=None, samples=2, k=[1])
    )


@pytest.mark.slow
def test_what_would_end_a_process_is_an_episodes_error(grpo_config, build):
    algorithm = build(failing(grpo_config).training(queries_per_step=4).env_runners(max_failed_share=1.0))
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
    with pytest.raises(EpisodesFailed, match="every one of 2 episodes failed: step: .*no such tool"):
        train(algorithm, 1)


def test_failed_episodes_are_said_with_their_share_their_error_and_its_line(grpo_config, build, caplog):
    algorithm = build(failing(grpo_config, only=["fine", "raises"]).training(queries_per_step=2))
    with caplog.at_level(logging.WARNING):
        records = train(algorithm, 3)
    assert [record["rollout/failed_share"] for record in records] == [0.5] * 3
    assert [record["reward/correct"] for record in records] == [1.0] * 3, "the others look perfect"
    (warning,) = [line for line in caplog.messages if line.startswith("training: ")]
    error = r"step: RuntimeError\('no such tool'\) \(test_failing_queries.py, line \d+\)"
    assert re.fullmatch(rf"training: 2 of 4 episodes failed \(50%\): {error}. They are left out .*", warning)


def test_tools_that_mostly_fail_are_said_at_the_step(grpo_config, build, caplog):
    config = failing(grpo_config, only=["fine"]).training(group_size=4)
    algorithm = build(config.environment("Calling-v0", data=None, instruction=None, env_config={"only": ["fine"]}))
    with caplog.at_level(logging.WARNING):
        train(algorithm, 2)
    (warning,) = [line for line in caplog.messages if line.startswith("tools: ")]
    assert "4 of 4 calls of search failed (100%): its server is gone." in warning


def test_a_run_ends_when_more_of_its_episodes_fail_than_it_may_and_can_be_saved_as_it_was(
    grpo_config, build, monkeypatch
):
    config = failing(grpo_config, only=["fine", "raises"]).training(queries_per_step=2)
    algorithm = build(config.env_runners(max_failed_share=0.4))
    said = "env_runners.max_failed_share: 2 of 4 episodes failed .50%.: step: .*no such tool.*; fix: .*more than 40%"
    with pytest.raises(EpisodesFailed, match=said):
        train(algorithm, 1)
    assert algorithm.in_step and algorithm.can_be_saved
    monkeypatch.setattr(Exiting, "verify", lambda *_: Verdict(True, Reason.EQUAL))  # what failed is back
    train(algorithm, 1)
    assert algorithm.steps_done == 1


def test_an_evaluation_counts_failed_answers_as_incorrect_and_says_so(grpo_config, build, caplog):
    algorithm = build(failing(grpo_config, only=["fine", "raises", "exit"]))
    with caplog.at_level(logging.WARNING):
        metrics = algorithm.evaluate()
    assert metrics["failed_share"] == pytest.approx(2 / 3) and metrics["pass@1"] <= 1 / 3
    (warning,) = [line for line in caplog.messages if line.startswith("evaluation: ")]
    assert "4 of 6 episodes failed (67%)" in warning and warning.endswith("They count as incorrect")
