"""An engine and a learner on one GPU, in turn: after sleep and a push the engine's log-probs are the learner's."""

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.vllm, pytest.mark.slow]


@pytest.mark.parametrize("way", ["ipc", "object_store"])
def test_a_shared_gpu(build, way):
    algorithm = build(
        learners=1,
        gpus=(0.51, 0.49),
        engine="vllm",
        num_env_runners=1,
        weight_transfer=way,
        sleep_while_training=True,
        gpu_memory_utilization=0.3,
        vllm={"max_model_len": 256, "enforce_eager": True},
    )
    for _ in range(3):
        algorithm.train()
        assert algorithm.batch.record["policy/logp_mismatch_max"] < 2e-2
    versions = {sample.rollout.weights_version for group in algorithm.batch.groups for sample in group.samples}
    assert versions == {algorithm.rollout_workers.version - 1}


def test_one_process(build):
    algorithm = build(
        gpus=(0, 1),
        engine="vllm",
        sleep_while_training=True,
        gpu_memory_utilization=0.3,
        vllm={"max_model_len": 256, "enforce_eager": True},
    )
    for _ in range(3):
        algorithm.train()
        assert algorithm.batch.record["policy/logp_mismatch_max"] < 2e-2
