"""An evaluation that is sampled in parts ends where nothing was answered, in all of them together."""

import pytest

from algorithms.evaluation.sampling import Sampler
from algorithms.rollout.failures import EpisodesFailed
from algorithms.rollout.types import Sampling
from tests.hand_made import answer

BROKEN = "step: OSError('the judge is gone') (env.py, line 3)"


def sampler_of(broken):
    """A sampler whose environment fails on some problems."""

    def rollout(requests):
        errors = [BROKEN if one.prompt.uid in broken else None for one in requests]
        return [
            answer(one, prompt=[1], response=[2], correct=False, error=error, verdict="environment_error")
            for one, error in zip(requests, errors, strict=True)
        ]

    return Sampler(rollout, 1, Sampling(), lambda draw: 0)


def test_a_part_may_fail_where_another_was_answered():
    sampler = sampler_of({"b", "c"})
    (before,), (after,) = sampler.sample(["a", "b"])[1], sampler.sample(["c"])[0]
    assert before.failed and after.failed


def test_the_first_part_may_not_fail_altogether():
    sampler = sampler_of({"c"})
    with pytest.raises(EpisodesFailed, match="every one of 1 episodes failed"):
        sampler.sample(["c"])
