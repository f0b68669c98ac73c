"""The pool without learners: engines that load a model once, in this process or in actors, and only answer."""

import pytest
import ray

from algorithms.grpo.config import GRPOConfig
from algorithms.rollout.types import Prompt, Request, Sampling, Split
from algorithms.rollout.workers import inference_workers
from r3env.envs.math import MathEnv


@pytest.fixture
def config():
    def make(runners=0):
        return (
            GRPOConfig()
            .environment("r3env/Math-v0", env_config={"data": "embedded:train", "instruction": ""})
            .rl_module(model="embedded:tiny")
            .env_runners(
                num_env_runners=runners, max_num_seqs=8, num_cpus_per_env_runner=0.5, num_threads=1, timeout_s=60
            )
        )

    return make


def requests_of(count):
    uids = MathEnv("embedded:train").uids
    return [Request(i, Prompt(uids[i]), i, 100 + i, Sampling(1.0, 1.0, 48), Split.EVALUATION) for i in range(count)]


def test_an_engine_in_this_process_needs_no_ray_and_answers_batch_by_batch(config, monkeypatch):
    monkeypatch.setattr(ray, "init", None)
    reported = []
    with inference_workers(config(), start_ray=None) as workers:
        rollouts = workers.rollout(requests_of(20), lambda *counts: reported.append(counts))
        engine = workers.group.local_env_runner.engine
        assert workers.version == engine.weights_version == 0
        in_batches = [r for start in (0, 8, 16) for r in workers.rollout(requests_of(20)[start : start + 8])]
    assert [rollout.request_id for rollout in rollouts] == list(range(20))
    assert reported[-1] == (20, 20)
    assert [r.sampling_logprobs.tobytes() for r in rollouts] == [r.sampling_logprobs.tobytes() for r in in_batches]
    assert not hasattr(engine, "model"), "it is freed"


@pytest.mark.parametrize("fault", [KeyboardInterrupt, MemoryError])
def test_an_engine_in_this_process_starts_afresh_after_an_interrupt(config, monkeypatch, fault):
    with inference_workers(config(), start_ray=None) as workers:
        undisturbed = workers.rollout(requests_of(8))
        runner = workers.group.local_env_runner
        take, taken = runner.episode_runner._take_stepped, []

        def take_until_some_have_ended(episode):
            taken.append(episode)
            if len(taken) > 12:  # each once when it begins, and when it ends
                raise fault
            take(episode)

        with monkeypatch.context() as patched, pytest.raises(fault):
            patched.setattr(runner.episode_runner, "_take_stepped", take_until_some_have_ended)
            workers.rollout(requests_of(8))
        # As when an older checkpoint is loaded: what was left would be of later weights.
        workers.supervisor.version = runner.engine.weights_version = -1
        again = workers.rollout(requests_of(8))
    for before, after in zip(undisturbed, again, strict=True):
        assert after.sampling_logprobs.tobytes() == before.sampling_logprobs.tobytes()
        assert after.weights_version == -1


def test_actors_answer_and_one_that_dies_comes_back_with_its_model(config, short_run_ray):
    started = []
    with inference_workers(config(runners=2), start_ray=started.append) as workers:
        assert [given.num_env_runners for given in started] == [2]
        before = workers.rollout(requests_of(24))
        first = workers.supervisor.runners[1].handle
        ray.kill(first, no_restart=False)
        after = workers.rollout(requests_of(24))
        same = sum(a.tokens.tobytes() == b.tokens.tobytes() for a, b in zip(before, after, strict=True))
        assert same >= 23, "the same seeds; batches of other sizes differ by float noise"
        assert {rollout.weights_version for rollout in after} == {0}
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(first.get_pid.remote(), timeout=60)
