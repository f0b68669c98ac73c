"""RLlib's metrics, callbacks and parts, as its schedulers, stops and examples expect them."""

import numpy as np
import pytest
import torch
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, LEARNER_RESULTS

COUNTS = ("num_episodes", "num_env_steps_sampled")


def test_episodes_and_steps_are_counted_over_a_resume(grpo_config, build):
    algorithm = build(grpo_config)
    first, second = (algorithm.train() for _ in range(2))
    batch = algorithm.batch
    rewards = [sample.rollout.reward for sample in batch.fresh]
    found = second[ENV_RUNNER_RESULTS]
    assert found["num_episodes"] == len(rewards) == found["num_env_steps_sampled"]
    for count in COUNTS:
        assert found[f"{count}_lifetime"] == first[ENV_RUNNER_RESULTS][count] + found[count]
    assert found["num_agent_steps_sampled_lifetime"] == {"default_agent": found["num_env_steps_sampled_lifetime"]}
    assert found["num_module_steps_sampled_lifetime"] == {"default_policy": found["num_env_steps_sampled_lifetime"]}
    assert found["episode_len_min"] == found["episode_len_mean"] == found["episode_len_max"] == 1
    assert found["episode_return_min"] <= found["episode_return_mean"] <= found["episode_return_max"]
    learned = second[LEARNER_RESULTS]
    assert learned["default_policy"]["total_loss"] == pytest.approx(batch.record["policy/loss"])
    assert learned["__all_modules__"]["num_env_steps_trained_lifetime"] == 2 * len(rewards)

    resumed = build(grpo_config.copy(copy_frozen=False))
    resumed.set_training_state(*algorithm.get_training_state())
    third, expected = resumed.train()[ENV_RUNNER_RESULTS], algorithm.train()[ENV_RUNNER_RESULTS]
    for count in COUNTS:
        assert third[f"{count}_lifetime"] == expected[f"{count}_lifetime"] > found[f"{count}_lifetime"]


def test_the_return_is_taken_over_as_many_episodes_as_rllib_is_told(grpo_config, build):
    algorithm = build(grpo_config.reporting(metrics_num_episodes_for_smoothing=1))
    found = algorithm.train()[ENV_RUNNER_RESULTS]
    *_, last = [sample.rollout.reward for sample in algorithm.batch.fresh]
    assert found["episode_return_mean"] == found["episode_return_max"] == last


def test_a_call_of_train_takes_steps_until_it_has_sampled_enough(grpo_config, build):
    training = grpo_config.training_settings
    responses = training.queries_per_step * training.group_size
    config = grpo_config.reporting(min_sample_timesteps_per_iteration=2 * responses)
    algorithm = build(config)
    for calls in (1, 2):
        found = algorithm.train()
        assert algorithm.steps_done == 2 * calls and found["training_iteration"] == calls
        assert found[ENV_RUNNER_RESULTS]["num_env_steps_sampled_lifetime"] == 2 * calls * responses
    resumed = build(config.copy(copy_frozen=False))
    resumed.set_training_state(*algorithm.get_training_state())
    found = resumed.train()
    assert resumed.steps_done == 6 and found["training_iteration"] == 3


class Notes(RLlibCallback):
    """Notes what is called, and with what."""

    def __init__(self):
        self.calls = []

    def on_algorithm_init(self, *, algorithm, metrics_logger, **kwargs):
        self.calls.append("init")

    def on_evaluate_start(self, *, algorithm, metrics_logger, **kwargs):
        self.calls.append("start")

    def on_evaluate_end(self, *, algorithm, metrics_logger, evaluation_metrics, **kwargs):
        self.calls.append(("end", evaluation_metrics))

    def on_train_result(self, *, algorithm, metrics_logger, result, **kwargs):
        self.calls.append(("result", result["training_iteration"]))


def test_callbacks_fire_where_their_names_say(grpo_config, build):
    seen = []
    config = grpo_config.evaluation(interval=1, samples=1, k=[1], limit=2)
    algorithm = build(config.callbacks(Notes, on_evaluate_end=lambda **found: seen.append(found["evaluation_metrics"])))
    algorithm.train()
    (notes,) = algorithm.callbacks
    init, start, (end, metrics), result = notes.calls
    assert (init, start, end, result) == ("init", "start", "end", ("result", 1))
    assert seen == [metrics] and metrics == algorithm.evaluation.metrics()


@pytest.mark.parametrize("rank", [0, 2])
def test_the_module_is_the_learners_policy(grpo_config, build, rank):
    algorithm = build(grpo_config.rl_module(lora_rank=rank, dtype="float32"))
    algorithm.train()
    module = algorithm.get_module()
    (sample, *_) = algorithm.batch.fresh
    tokens = torch.as_tensor(sample.rollout.tokens)[None]
    with torch.no_grad():
        logits = module.forward_inference({"input_ids": tokens})["logits"][0].float()
    logprobs = logits.log_softmax(-1)[:-1].gather(1, tokens[0, 1:, None])[:, 0].numpy()
    expected = algorithm.score_under([sample], "policy")[0]
    np.testing.assert_allclose(logprobs[sample.rollout.loss_mask[1:]], expected, atol=1e-4)
    assert algorithm.get_module("another") is None


def test_the_module_is_there_with_a_remote_runner_and_costs_no_engine(grpo_config, build):
    algorithm = build(grpo_config.env_runners(num_env_runners=1))
    assert algorithm.get_module() is not None
    algorithm.train()
    assert algorithm.batch.record["rollout/runner_restarts"] == 0
