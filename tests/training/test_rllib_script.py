"""Scripts as RLlib's users write them: those of its documentation for PPO, with the names of the classes changed."""

import gc
import sys

import pytest
import ray
from ray import tune
from ray.rllib.algorithms.algorithm import Algorithm
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, EPISODE_RETURN_MEAN, EVALUATION_RESULTS
from ray.rllib.utils.test_utils import check_train_results_new_api_stack
from ray.tune.registry import get_trainable_cls

from algorithms.grpo.algorithm import GRPO
from algorithms.grpo.config import ConfigError, GRPOConfig
from algorithms.learner.rllib_group import BoundLearnerGroup, _this_ray
from algorithms.r3_grpo.algorithm import R3GRPO
from algorithms.rollout.env_runner import environment_makers
from algorithms.rollout.types import Split
from r3env.envs.math import MathEnv
from tests.docs.pages import DOCS, fenced

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # callbacks go to trials


class LongestResponse(RLlibCallback):
    def on_algorithm_init(self, *, algorithm, **kwargs):
        assert algorithm.config.measured.engine_length, "from which env runners are made"

    def on_episode_start(self, *, episode, **kwargs):
        episode.custom_data["longest"] = 0

    def on_episode_step(self, *, episode, env, **kwargs):
        episode.custom_data["longest"] = max(episode.custom_data["longest"], len(episode.get_actions(-1)))

    def on_episode_end(self, *, episode, metrics_logger, **kwargs):
        metrics_logger.log_value("longest_response", episode.custom_data["longest"], reduce="max")
        metrics_logger.log_value("episode_rewards", sum(episode.get_rewards()), reduce="mean", window=10)


class OwnProblems(MathEnv):
    """Given as a class, which the processes of trials know by Ray."""


def custom_eval_function(algorithm, eval_workers):
    """As in RLlib's example `custom_evaluation`."""
    parts = eval_workers.foreach_env_runner(func=lambda runner: runner.sample(num_episodes=2, explore=False))
    episodes = [episode for part in parts for episode in part]
    steps = sum(map(len, episodes))
    mean = sum(episode.get_return() for episode in episodes) / len(episodes)
    return {ENV_RUNNER_RESULTS: {EPISODE_RETURN_MEAN: mean}}, steps, steps


def test_a_script_of_an_rllib_user_runs(grpo_config, build, tmp_path):
    config = grpo_config.callbacks(LongestResponse).evaluation(
        samples=1, k=[1], evaluation_interval=1, evaluation_duration=4, evaluation_duration_unit="episodes"
    )
    algo = build(config.evaluation(custom_evaluation_function=custom_eval_function))
    for _ in range(3):
        result = algo.train()
        if result[ENV_RUNNER_RESULTS][EPISODE_RETURN_MEAN] > 0.0:
            break
    check_train_results_new_api_stack(result)
    found = result[ENV_RUNNER_RESULTS]
    assert found["longest_response"] > 0
    assert 0.0 <= found["episode_rewards"] <= 1.0 and found[EPISODE_RETURN_MEAN] <= found["episode_return_max"]
    assert result["training_iteration"] == algo.iteration
    assert result[EVALUATION_RESULTS][ENV_RUNNER_RESULTS].keys() == {EPISODE_RETURN_MEAN}
    assert algo.evaluate()[ENV_RUNNER_RESULTS].keys() == {EPISODE_RETURN_MEAN}
    assert isinstance(algo.learner_group, BoundLearnerGroup)
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


@pytest.mark.parametrize("is_there", [True, False])
def test_learners_that_nobody_ends_are_ended_by_python_unless_their_ray_is_gone(ray_session, is_there, monkeypatch):
    """In another Ray that call would wait for ever, without one it would start one."""
    ended = []
    monkeypatch.setattr(BoundLearnerGroup, "shutdown", lambda group: ended.append(id(group)))
    group = BoundLearnerGroup.__new__(BoundLearnerGroup)
    group.config, group._is_shut_down = GRPOConfig().learners(num_learners=1), False
    group._ray = _this_ray() if is_there else ("another", "01000000")
    own = id(group)
    del group
    gc.collect()  # perhaps also groups of other tests
    assert ended.count(own) == is_there


def test_a_trial_that_cannot_begin_ends_in_one_line(grpo_config, tmp_path):
    """Tune makes the algorithm of a trial from its class and a dict."""
    config = grpo_config.environment(data=f"{tmp_path}/nowhere.jsonl")
    with pytest.raises(ConfigError, match="^environment.data: .*nowhere.jsonl"):
        GRPO(config=config.to_dict())


def test_the_algorithms_are_known_to_tune_by_name():
    assert (get_trainable_cls("GRPO"), get_trainable_cls("R3GRPO")) == (GRPO, R3GRPO)


@pytest.mark.slow
def test_the_page_for_rllib_users_runs_as_it_stands(ray_session, tmp_path, monkeypatch):
    """With a search of Tune, whose folder is continued here: a trial that fails resumes from its checkpoint."""
    monkeypatch.chdir(tmp_path)
    scope = {"__name__": __name__}
    for block in fenced(DOCS / "guides" / "rllib.md", "python"):
        exec(compile(block, "rllib.md", "exec"), scope)
    check_train_results_new_api_stack(scope["result"])
    assert scope["result"][EVALUATION_RESULTS][ENV_RUNNER_RESULTS]["num_episodes"] == 8
    assert [len(part) for part in scope["parts"]] == [2] and len(scope["answers"]) == 4
    for config in (scope["by_name"], scope["by_class"]):
        assert len(environment_makers(config)[Split.TRAIN]().unwrapped.queries) == 10
    results, best = scope["results"], scope["best"]
    assert not results.errors and best.checkpoint is not None
    assert {result.metrics["training_iteration"] for result in results} <= {1, 2}
    assert 0.0 <= best.metrics[ENV_RUNNER_RESULTS][EPISODE_RETURN_MEAN] <= 1.0
    restored = tune.Tuner.restore(str(tmp_path / "runs/tune/rates"), trainable=GRPO)
    assert len(restored.get_results()) == 2


@pytest.mark.slow
def test_a_flat_search_by_name_is_trained_as_it_is_labeled_and_restored_where_it_failed(grpo_config, tmp_path):
    flag = tmp_path / "mended"

    def fail(*, algorithm, **found):
        if algorithm.iteration == 2 and not flag.exists():
            raise RuntimeError("not yet")

    config = grpo_config.environment(OwnProblems).callbacks(on_train_result=fail)
    space = config.to_dict() | {"group_size": tune.grid_search([2])}
    run_config = tune.RunConfig(
        name="flat",
        storage_path=str(tmp_path),
        stop={"training_iteration": 2},
        checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
        verbose=0,
    )
    failed = tune.Tuner("GRPO", param_space=space, run_config=run_config).fit()
    assert len(failed.errors) == 1
    flag.touch()
    restored = tune.Tuner.restore(str(tmp_path / "flat"), trainable="GRPO", resume_errored=True)
    (result,) = restored.fit()
    assert result.error is None and result.metrics["training_iteration"] == 2
    found = result.metrics[ENV_RUNNER_RESULTS]
    queries = grpo_config.training_settings.queries_per_step
    assert found["num_episodes"] == 2 * queries
    assert found["num_episodes_lifetime"] == 2 * found["num_episodes"]
