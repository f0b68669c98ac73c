"""RLlib's metrics, callbacks and parts, as its schedulers, stops and examples expect them."""

import sys

import numpy as np
import pytest
import ray
import torch
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, LEARNER_RESULTS

from algorithms.config.errors import ConfigError
from algorithms.rollout.conversation import conversation
from algorithms.rollout.failures import EpisodesFailed
from algorithms.rollout.types import Split
from r3env.core import VerifiableEnv

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # callbacks go to runners
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

    def on_checkpoint_loaded(self, *, algorithm, **kwargs):
        self.calls.append(("loaded", algorithm.steps_done))


def test_callbacks_fire_where_their_names_say(grpo_config, build, tmp_path):
    seen = []
    config = grpo_config.evaluation(interval=1, samples=1, k=[1], limit=2)
    algorithm = build(config.callbacks(Notes, on_evaluate_end=lambda **found: seen.append(found["evaluation_metrics"])))
    algorithm.train()
    (notes,) = algorithm.callbacks
    init, start, (end, metrics), result = notes.calls
    assert (init, start, end, result) == ("init", "start", "end", ("result", 1))
    rewards = [answer.first.reward for answers in algorithm.evaluation.answers for answer in answers]
    assert seen == [metrics] and algorithm.evaluation.metrics().items() <= metrics.items()
    assert metrics[ENV_RUNNER_RESULTS]["episode_return_mean"] == pytest.approx(sum(rewards) / len(rewards))
    assert metrics[ENV_RUNNER_RESULTS]["num_episodes"] == len(rewards) == 2
    algorithm.restore(algorithm.save(str(tmp_path)))
    assert notes.calls[-1] == ("loaded", 1)


class Episodes(RLlibCallback):
    """Notes what is called in an env runner; logs a metric."""

    def __init__(self):
        self.calls, self.samples = {}, []

    def note(self, place, episode, env):
        assert isinstance(env, VerifiableEnv)
        self.calls.setdefault(episode.id_, []).append((place, len(episode)))

    def on_environment_created(self, *, env_runner, metrics_logger, env, env_context, **kwargs):
        assert isinstance(env, VerifiableEnv) and env_context["data"] == "embedded:train"
        metrics_logger.log_value("environments", 1, reduce="lifetime_sum")

    def on_episode_created(self, *, episode, env, **kwargs):
        self.note("created", episode, env)

    def on_episode_start(self, *, episode, env, **kwargs):
        self.note("start", episode, env)

    def on_episode_step(self, *, episode, env, **kwargs):
        self.note("step", episode, env)

    def on_episode_end(self, *, episode, env, env_runner, metrics_logger, **kwargs):
        self.note("end", episode, env)
        metrics_logger.log_value("trained", episode.get_infos(0)["split"] == "train", reduce="mean", window=100)
        metrics_logger.log_value("longest_turn", len(max(episode.get_actions(), key=len)), reduce="max")

    def on_sample_end(self, *, env_runner, metrics_logger, samples, **kwargs):
        self.samples += samples


def test_callbacks_of_runners_see_the_conversations(grpo_config, build):
    algorithm = build(grpo_config.environment(max_turns=2).callbacks(Episodes))
    result = algorithm.train()
    calls = algorithm.env_runner_group.local_env_runner.callbacks.objects[0]
    rollouts = [sample.rollout for sample in algorithm.batch.fresh]
    assert len(calls.samples) == len(calls.calls) == len(rollouts)
    by_tokens = {tuple(np.concatenate([i["tokens"] for i in e.get_infos()[1:]])): e for e in calls.samples}
    for rollout in rollouts:
        episode = by_tokens[tuple(rollout.response_tokens)]
        reset, *steps = episode.get_infos()
        turns = conversation(rollout, algorithm.tokenizer)
        assert [*reset["messages"], *(turn for info in steps for turn in info["messages"])] == [
            turn for turn in turns if turn["role"] != "assistant"
        ]
        assert episode.get_actions() == [turn["content"] for turn in turns if turn["role"] == "assistant"]
        assert episode.get_observations()[0] == reset["messages"][-1]["content"]
        assert episode.get_return() == rollout.reward and len(episode) == len(rollout.turns)
        assert [info["correct"] for info in steps] == list(rollout.turn_correct)
        assert (reset["uid"], steps[-1]["verdict"]) == (rollout.uid, rollout.verdict)
        assert episode.is_done and episode.is_truncated == rollout.truncated
        length, events = len(episode), calls.calls[episode.id_]
        steps = [("step", n + 1) for n in range(length)]
        assert events == [("created", 0), ("start", 0), *steps, ("end", length)]
    assert max(map(len, calls.samples)) == 2
    logged = result[ENV_RUNNER_RESULTS]
    assert logged["longest_turn"] == max(len(action) for e in calls.samples for action in e.get_actions())
    assert len(rollouts) / 2 < logged["environments"] <= len(rollouts) + 1


def test_what_a_callback_raises_in_a_runner_ends_training_in_one_line(grpo_config, build):
    algorithm = build(grpo_config.callbacks(on_episode_step=lambda **found: 1 / 0))
    with pytest.raises(EpisodesFailed, match=r"on_episode_step: ZeroDivisionError\('division by zero'\)"):
        algorithm.train()


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


def test_the_policy_answers_a_problem_and_a_conversation(grpo_config, build, caplog):
    algorithm = build(grpo_config)
    environment = algorithm.environments[Split.TRAIN].unwrapped
    query = environment.query(environment.uids[0])
    answers = algorithm.sample(query.problem, n=3)
    assert answers == algorithm.sample([{"role": "user", "content": environment.prompt(query)}], 3)
    greedy = set(algorithm.sample(query.problem, 3, temperature=0.0))
    assert len(set(answers)) > 1 == len(greedy)
    (begun,) = algorithm.sample(query.problem, temperature=0.0, max_response_tokens=2)
    assert min(greedy).startswith(begun)
    assert algorithm.sample(query.problem, temperature=0.0, stop=[begun[:1]]) == [begun[:1]]
    refused = ("remove_module", "compute_single_action", "get_policy", "evaluate_offline")
    for call in (getattr(algorithm, name) for name in refused):
        with pytest.raises(ConfigError, match="^(there is one policy|.*; fix: algo.)"):
            call("default_policy")
    weights = algorithm.get_weights()
    (own,) = weights.values()
    for wrong in ({}, own):
        with pytest.raises(ConfigError, match="^set_weights: .*; fix: what get_weights returns$"):
            algorithm.set_weights(wrong)
    with pytest.raises(RuntimeError, match="another"):
        zeros = {name: 0 * value for name, value in own.items()}
        algorithm.set_weights({"default_policy": zeros | {"another": next(iter(own.values()))}})
    (kept,) = algorithm.get_weights().values()
    assert all(np.array_equal(kept[name], value) for name, value in own.items()), "nothing is loaded"
    algorithm.set_weights({name: {key: 0 * value for key, value in own.items()} for name, own in weights.items()})
    assert {*algorithm.sample(query.problem, temperature=0.0)} != greedy
    algorithm.set_weights(weights)
    assert {*algorithm.sample(query.problem, temperature=0.0)} == greedy
    with pytest.raises(ValueError, match="sample: no conversation; fix: a text, or turns with `role` and `content`"):
        algorithm.sample([{"content": "?"}])
    with pytest.raises(ValueError, match=r"sample: reset: .* tokens leave no room"):
        algorithm.sample("1 + 1 " * 5000)
    algorithm.stop()
    algorithm.stop()
    assert not [record for record in caplog.records if record.exc_info]


def test_a_remote_runner_answers_and_no_call_costs_its_engine(grpo_config, build):
    config = grpo_config.env_runners(num_env_runners=1).training(max_off_policy_steps=1).callbacks(Episodes)
    algorithm = build(config.evaluation(samples=1, k=[1], evaluation_interval=1, evaluation_duration=4))
    assert algorithm.get_module() is not None
    result = algorithm.train()
    assert result[ENV_RUNNER_RESULTS]["longest_turn"] > 0  # callbacks log there too
    evaluated = result["evaluation"][ENV_RUNNER_RESULTS]
    assert evaluated["num_episodes"] == 4 and evaluated["trained"] == 0.0  # beside rollouts for the next step
    trained = [algorithm.train()[ENV_RUNNER_RESULTS]["trained"] for _ in range(3)]
    assert 1.0 in trained and 0.0 not in trained  # not a number in a step within which no episode ended
    runners = algorithm.env_runner_group
    (episodes,) = runners.foreach_env_runner(lambda runner: runner.sample(num_episodes=3, explore=False))
    assert len({episode.get_infos()[0]["uid"] for episode in episodes}) == 3
    for episode in episodes:
        asked = episode.get_infos()[0]["messages"]
        assert algorithm.sample(asked, temperature=0.0) == episode.get_actions()
    pid = runners.foreach_env_runner("get_pid")
    assert runners.foreach_env_runner(lambda runner: runner.sample(num_timesteps=8)) == []  # RLlib logs the error
    algorithm.train()
    assert runners.foreach_env_runner("get_pid") == pid
    assert algorithm.batch.record["rollout/runner_restarts"] == 0


def test_what_is_never_called_is_refused_of_callbacks_that_a_function_makes(grpo_config, build):
    kind = type("Mine", (RLlibCallback,), {"on_env_runners_recreated": lambda self, **_: None})
    with pytest.raises(ConfigError, match=r"^Mine\.on_env_runners_recreated: is never called here; known: on_algori"):
        build(grpo_config.callbacks(lambda: kind()))
