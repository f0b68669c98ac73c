"""A resumed run rolls out and trains on what an uninterrupted one would have, whatever chooses queries and sizes."""

import pytest

from .simulated import Run


def hinted(uid):
    return {"hints": ["more", "and more"]}


CHOOSERS = {
    "epoch": {},
    "posterior": {"sampler": "posterior"},
    "greso": {"sampler": "greso"},
    "window": {"sampler": "window"},
    "vas": {"sampler": "vas", "settings": {"vas": {"interval": 2}}},
    "adcl": {"sampler": "adcl", "settings": {"adcl": {"interval": 2}}},
    "exgrpo": {"sampler": "exgrpo"},
    "self_filter": {"mechanisms": ["self_filter"]},
    "knapsack": {"mechanisms": ["knapsack"]},
    "gdro": {"mechanisms": ["gdro"]},
    "fission": {"mechanisms": ["fission"]},
    "scaf_grpo": {"mechanisms": ["scaf_grpo"], "settings": {"scaf_grpo": {"warmup": 2}}, "info": hinted},
    "posterior and knapsack": {"sampler": "posterior", "mechanisms": ["knapsack"]},
}
OWN_ROUNDS = {"adcl", "self_filter"}  # refuse dynamic sampling


@pytest.mark.parametrize("rounds", [0, 2])
@pytest.mark.parametrize("lag", [0, 1, 3])
@pytest.mark.parametrize("chooser", CHOOSERS)
def test_a_resumed_run_rolls_out_what_an_uninterrupted_one_does(chooser, lag, rounds):
    training = {"max_off_policy_steps": lag, "max_resample_rounds": 0 if chooser in OWN_ROUNDS else rounds}
    whole = Run(**CHOOSERS[chooser], **training)
    whole.train(9)
    saved = whole.save()
    resumed = Run(**CHOOSERS[chooser], **training).load(saved)
    assert resumed.source.state == whole.source.state
    assert resumed.train(9) == whole.train(9)
    for mine, theirs in zip(resumed.save()[0].items(), whole.save()[0].items(), strict=True):
        assert mine[0] == theirs[0] and (mine[1] == theirs[1]).all()


@pytest.mark.parametrize("chooser", CHOOSERS)
def test_a_step_that_failed_before_the_update_is_made_again(chooser):
    """What is saved in the middle of a step is the state in which it began."""
    whole, failed = (Run(**CHOOSERS[chooser]) for _ in range(2))
    whole.train(4), failed.train(4)
    began = failed.source.state
    failed.source.next_batch(4)
    arrays, state = failed.save()
    assert Run(**CHOOSERS[chooser]).load((arrays, state | began)).train(5) == whole.train(5)
