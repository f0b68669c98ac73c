"""Scripts as RLlib's users write them: those of its documentation for PPO, with the names of the classes changed."""

import sys

import pytest
import ray
from ray import tune
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, EPISODE_RETURN_MEAN, EVALUATION_RESULTS
from ray.tune.schedulers import ASHAScheduler

from algorithms.grpo.algorithm import GRPO
from algorithms.grpo.config import ConfigError

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # callbacks go to trials
RETURN = f"{ENV_RUNNER_RESULTS}/{EPISODE_RETURN_MEAN}"


class LongestResponse(RLlibCallback):
    def on_episode_start(self, *, episode, **kwargs):
        episode.custom_data["longest"] = 0

    def on_episode_step(self, *, episode, env, **kwargs):
        episode.custom_data["longest"] = max(episode.custom_data["longest"], len(episode.get_actions(-1)))

    def on_episode_end(self, *, episode, metrics_logger, **kwargs):
        metrics_logger.log_value("longest_response", episode.custom_data["longest"], reduce="max")
        metrics_logger.log_value("episode_rewards", sum(episode.get_rewards()), reduce="mean", window=10)


def custom_eval_function(algorithm, eval_workers):
    """As in RLlib's example `custom_evaluation`."""
    parts = eval_workers.foreach_env_runner(func=lambda runner: runner.sample(num_episodes=2, explore=False))
    episodes = [episode for part in parts for episode in part]
    steps = sum(map(len, episodes))
    mean = sum(episode.get_return() for episode in episodes) / len(episodes)
    return {ENV_RUNNER_RESULTS: {EPISODE_RETURN_MEAN: mean}}, steps, steps


def configured(config):
    return config.callbacks(LongestResponse).evaluation(evaluation_interval=1)


def test_a_script_of_an_rllib_user_runs(grpo_config, build, tmp_path):
    algo = build(configured(grpo_config).evaluation(custom_evaluation_function=custom_eval_function))
    for _ in range(3):
        result = algo.train()
        if result[ENV_RUNNER_RESULTS][EPISODE_RETURN_MEAN] > 0.0:
            break
    found = result[ENV_RUNNER_RESULTS]
    assert found["longest_response"] > 0
    assert 0.0 <= found["episode_rewards"] <= 1.0 and found[EPISODE_RETURN_MEAN] <= found["episode_return_max"]
    assert result["training_iteration"] == algo.iteration
    assert result[EVALUATION_RESULTS][ENV_RUNNER_RESULTS].keys() == {EPISODE_RETURN_MEAN}
    assert algo.evaluate()[ENV_RUNNER_RESULTS].keys() == {EPISODE_RETURN_MEAN}
    module = algo.get_module()
    path = algo.save_to_path(str(tmp_path / "checkpoint"))
    restored = Algorithm.from_checkpoint(path)
    try:
        assert restored.iteration == algo.iteration
        for (name, found), expected in zip(
            module.state_dict().items(), restored.get_module().state_dict().values(), strict=True
        ):
            assert found.equal(expected), name
    finally:
        restored.stop()


def test_a_trial_that_cannot_begin_ends_in_one_line(grpo_config, tmp_path):
    """Tune makes the algorithm of a trial from its class and a dict."""
    config = grpo_config.environment(data=f"{tmp_path}/nowhere.jsonl")
    with pytest.raises(ConfigError, match="^environment.data: .*nowhere.jsonl"):
        GRPO(config=config.to_dict())


@pytest.mark.slow
def test_a_tuner_stops_trials_on_the_return_of_episodes(grpo_config, tmp_path):
    config = configured(grpo_config).training(lr=tune.grid_search([1e-5, 1e-4]))
    results = tune.Tuner(
        GRPO,
        param_space=config,
        tune_config=tune.TuneConfig(
            metric=RETURN, mode="max", scheduler=ASHAScheduler(max_t=2, grace_period=1), max_concurrent_trials=1
        ),
        run_config=tune.RunConfig(
            storage_path=str(tmp_path),
            stop={RETURN: 1.0, "training_iteration": 2},
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
            verbose=0,
        ),
    ).fit()
    assert not results.errors
    assert {result.metrics["training_iteration"] for result in results} <= {1, 2}
    best = results.get_best_result()
    assert best.checkpoint is not None
    assert 0.0 <= best.metrics[ENV_RUNNER_RESULTS][EPISODE_RETURN_MEAN] <= 1.0
    assert best.metrics[EVALUATION_RESULTS][ENV_RUNNER_RESULTS]["num_episodes"] == 16
    assert best.metrics[ENV_RUNNER_RESULTS]["longest_response"] > 0
