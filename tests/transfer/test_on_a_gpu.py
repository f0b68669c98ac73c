"""An engine and a learner on one GPU, in turn: after sleep and a push the engine's log-probs are the learner's."""

import pytest

from benchmarks.gpu_steps.actors import agreement, disturb, on_learner
from benchmarks.gpu_steps.ipc import round_trip
from benchmarks.gpu_steps.step import Job

pytestmark = pytest.mark.gpu
ENGINE = {
    "engine": "vllm",
    "sleep_while_training": True,
    "gpu_memory_utilization": 0.3,
    "vllm": {"max_model_len": 256, "enforce_eager": True},
}


def test_a_tensor_is_read_and_written_by_another_process():
    assert round_trip(Job("tiny", "cuda", "")).wrong == []


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.parametrize("way", ["ipc", "object_store"])
def test_a_shared_gpu(build_for_test, way):
    algorithm = build_for_test(learners=1, gpus=(0.51, 0.49), num_env_runners=1, weight_transfer=way, **ENGINE)
    for _ in range(3):
        algorithm.train()
        assert algorithm.batch.record["policy/logp_mismatch_max"] < 2e-2
    versions = {sample.rollout.weights_version for group in algorithm.batch.groups for sample in group.samples}
    assert versions == {algorithm.rollout_workers.version - 1}


@pytest.mark.vllm
@pytest.mark.slow
def test_one_process(build_for_test):
    algorithm = build_for_test(gpus=(0, 1), **ENGINE)
    for _ in range(3):
        algorithm.train()
        assert algorithm.batch.record["policy/logp_mismatch_max"] < 2e-2


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.parametrize("way", ["in_process", "ipc", "object_store"])
def test_after_every_sleep_and_push_the_engine_samples_with_the_learners_weights(build_for_test, way):
    actors = {"learners": 1, "gpus": (0.51, 0.49), "num_env_runners": 1, "weight_transfer": way}
    algorithm = build_for_test(**({"gpus": (0, 1)} if way == "in_process" else actors), **ENGINE)
    for _ in range(3):
        algorithm.rollout_workers.sleep_engines()
        on_learner(algorithm, disturb)
        algorithm.rollout_workers.push_weights()
        assert agreement(algorithm, Job("tiny", "cuda", "")).wrong == []
