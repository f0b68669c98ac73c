"""An evaluation that is sampled in parts ends where nothing was answered, in all of them together."""

from collections import defaultdict
from types import SimpleNamespace

import pytest

from algorithms.evaluation.benchmarks import holds_answers, sample_parts
from algorithms.evaluation.responses import ResponseFolder
from algorithms.evaluation.sampling import Sampler
from algorithms.rollout.failures import EpisodesFailed
from algorithms.rollout.types import Sampling
from tests.hand_made import answer

BROKEN = "step: OSError('the judge is gone') (env.py, line 3)"


def sampler_of(broken):
    """A sampler whose environment fails on some problems."""

    def rollout(requests):
        failed, answered = (BROKEN, "environment_error"), (None, "different")
        errors = [failed if one.prompt.uid in broken else answered for one in requests]
        return [
            answer(one, prompt=[1], response=[2], correct=False, error=error, verdict=verdict)
            for one, (error, verdict) in zip(requests, errors, strict=True)
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


def test_a_part_may_fail_where_another_was_answered_before_an_interruption(tmp_path):
    folder, rollout = ResponseFolder(tmp_path), sampler_of({"m/2"}).rollout
    environment = SimpleNamespace(queries=defaultdict(lambda: SimpleNamespace(level=None)))
    for parts in ([["m/0", "m/1"]], [["m/0", "m/1"], ["m/2"]]):
        sample_parts(
            lambda requests, _: rollout(requests),
            environment,
            parts,
            folder,
            samples=1,
            sampling=Sampling(),
            truncator=None,
            seed="0",
            on_progress=lambda *_: None,
            answered=holds_answers(folder, parts),
        )
    assert [response.failed for response in folder.read()] == [False, False, True]
