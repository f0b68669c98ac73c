"""Ray's packing: shares of 0.51 and 0.49 put one engine and one learner on every GPU, halves do not."""

import time

import pytest
import ray
from ray.exceptions import GetTimeoutError, RayActorError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from algorithms.config.placement import LEARNER_SHARE, RUNNER_SHARE
from tests.own_ray import FIRST_FAKE_GPU

from .conftest import GPUS

pytestmark = pytest.mark.slow


@ray.remote(num_cpus=0.1, max_restarts=-1)
class Somewhere:
    def gpus(self):
        return [int(gpu) for gpu in ray.get_gpu_ids()]  # texts, where they have been chosen


def placed(runner_share, learner_share):
    """GPUs of runners and of learners, made as RLlib makes them: runners first, learners in a packed group."""
    runners = [Somewhere.options(num_gpus=runner_share).remote() for _ in range(GPUS)]
    on = [ray.get(runner.gpus.remote()) for runner in runners]
    group = placement_group([{"CPU": 0.1, "GPU": learner_share}] * GPUS, strategy="PACK")
    ray.get(group.ready(), timeout=300)
    learners = [
        Somewhere.options(
            num_gpus=learner_share,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
        ).remote()
        for index in range(GPUS)
    ]
    beside = [ray.get(learner.gpus.remote()) for learner in learners]
    return runners, learners, group, on, beside


def gpus_once_it_is_back(actor):
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        try:
            return ray.get(actor.gpus.remote(), timeout=10)
        except (RayActorError, GetTimeoutError):
            time.sleep(0.2)
    raise TimeoutError("the actor did not come back")


@pytest.mark.parametrize(("shares", "pairs"), [((RUNNER_SHARE, LEARNER_SHARE), True), ((0.5, 0.5), False)])
def test_shares_that_make_pairs(ray_session, shares, pairs):
    runners, learners, group, on, beside = placed(*shares)
    every_gpu = [[FIRST_FAKE_GPU + number] for number in range(GPUS)]
    assert (sorted(on) == every_gpu and sorted(beside) == every_gpu) == pairs
    ray.kill(runners[0], no_restart=False)
    assert gpus_once_it_is_back(runners[0]) == on[0], "a runner that is replaced comes back to its GPU"
    for actor in (*runners, *learners):
        ray.kill(actor)
    remove_placement_group(group)
