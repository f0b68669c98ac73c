"""Through Ray's object store: learner actors to runner actors, one object a bucket, whatever fails on the way."""

import math
import os
import signal
import sys

import pytest
import ray
import torch

from algorithms.rollout.weight_sync.object_store import ObjectStoreTransfer, store_weights
from algorithms.rollout.weight_sync.serialization import Serialization, bytes_of
from algorithms.rollout.weight_sync.transfer import NoRunnerTookWeights

from .conftest import BUCKET_BYTES

pytestmark = pytest.mark.slow
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # actors do not know the tests' folder
SERIALIZATION = Serialization("float32", BUCKET_BYTES)


@pytest.fixture(scope="module")
def algorithm(build):
    return build(learners=2, num_env_runners=3)


def set_policy(algorithm, policy):
    """Put weights into the learners, as a new version."""
    algorithm.learner_group.foreach_learner(_take, state=policy.state_dict())


def _take(learner, state):
    learner.lm.load_state_dict(state)
    learner._weights_seq_no += 1


def engine_states(group):
    return group.foreach_env_runner(lambda runner: runner.engine.model.state_dict(), local_env_runner=False)


def versions(group, **which):
    return group.foreach_env_runner(
        lambda runner: runner.engine.weights_version, local_env_runner=False, timeout_seconds=20, **which
    )


def test_every_runner_holds_the_learners_weights_and_says_so(algorithm, other_policy):
    group = algorithm.env_runner_group
    before = algorithm.rollout_workers.version
    set_policy(algorithm, other_policy)
    version = ObjectStoreTransfer(SERIALIZATION).push(algorithm.learner_group, group, 60)
    assert version == before + 1
    assert versions(group) == [version] * 3
    for state in engine_states(group):
        for name, tensor in other_policy.state_dict().items():
            torch.testing.assert_close(state[name], tensor, rtol=0, atol=0)


def test_an_object_a_bucket_in_the_engines_type_and_vectors_whole(algorithm):
    sizes = {}
    for dtype in ("float32", "bfloat16"):
        _, weights = store_weights(algorithm.learner_group, Serialization(dtype, BUCKET_BYTES))
        objects = [ray.get(bucket.payload) for bucket in weights.stored]
        assert [array.nbytes for array in objects] == [bytes_of(bucket.specs) for bucket in weights.stored]
        assert all(
            array.nbytes <= BUCKET_BYTES or len(b.specs) == 1 for array, b in zip(objects, weights.stored, strict=True)
        )
        assert len(objects) > 5
        sizes[dtype] = sum(array.nbytes for array in objects)
        names = {name for tensors in weights.buckets() for name, _ in tensors}
        assert "lm_head.weight" in names
        assert names == set(weights.shapes)
    vectors = sum(4 * math.prod(shape) for shape in weights.shapes.values() if len(shape) < 2)
    assert 2 * sizes["bfloat16"] == sizes["float32"] + vectors


def test_one_runner_alone_gets_the_weights_that_were_pushed_last(algorithm):
    version, state = algorithm.rollout_workers.transfer.message(algorithm.learner_group)
    assert algorithm.env_runner_group.foreach_env_runner(
        "set_state", kwargs={"state": state}, local_env_runner=False, remote_worker_ids=[2]
    ) == [version]


def test_a_runner_that_fails_or_hangs_does_not_stop_the_others(algorithm, other_policy):
    group = algorithm.env_runner_group
    pids = dict(zip([1, 2, 3], group.foreach_env_runner("get_pid", local_env_runner=False), strict=True))
    group.foreach_env_runner(_forget_model, local_env_runner=False, remote_worker_ids=[1])
    set_policy(algorithm, other_policy)
    os.kill(pids[2], signal.SIGSTOP)
    try:
        version = ObjectStoreTransfer(SERIALIZATION).push(algorithm.learner_group, group, 20)
        assert group.healthy_env_runner_ids() == [3]
        assert versions(group, remote_worker_ids=[3]) == [version]
    finally:
        os.kill(pids[2], signal.SIGCONT)


def _forget_model(runner):
    runner.engine.start_weights = None


def test_no_runner_left_is_an_error_in_words(algorithm):
    group = algorithm.env_runner_group
    group.foreach_env_runner(_forget_model, local_env_runner=False, remote_worker_ids=[3])
    with pytest.raises(NoRunnerTookWeights, match="'NoneType' object is not callable"):
        ObjectStoreTransfer(SERIALIZATION).push(algorithm.learner_group, group, 20)
    with pytest.raises(NoRunnerTookWeights, match="none is healthy"):
        ObjectStoreTransfer(SERIALIZATION).push(algorithm.learner_group, group, 20)
