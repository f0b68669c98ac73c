"""What dynamic sampling drops is remembered as the policy that sampled it saw it, not the one that the step made."""

import copy

import numpy as np

from algorithms.grpo.samples import scoring_row
from algorithms.learner.forward import score
from algorithms.r3_grpo.config import R3GRPOConfig

from .conftest import preset


def test_dropped_samples_keep_the_log_probs_of_the_policy_before_the_update(build):
    algorithm = build(
        preset(
            "dapo",
            "training.queries_per_step=6",
            "training.group_size=4",
            "training.minibatches=1",
            "training.max_resample_rounds=2",
            "training.lr=1e-2",
            "env_runners.max_response_tokens=40",
            "env_runners.temperature=0.8",
            "ranking.enabled=false",
            config_class=R3GRPOConfig,
        )
    )
    learner = algorithm.learner_group._learner
    before = copy.deepcopy(learner.lm).eval()
    algorithm.train()
    assert algorithm.batch.record["policy/logp_mismatch_max"] < 1e-3, "learners measure at the sampling temperature"
    samples = [sample for group in algorithm.batch.dropped for sample in group.samples]
    rows = [scoring_row(sample) for sample in samples]
    expected = score(before, rows, learner.forward_settings, entropy=False)
    moved = score(learner.lm.eval(), rows, learner.forward_settings, entropy=False)
    assert samples
    for sample, (logprobs, _) in zip(samples, expected, strict=True):
        np.testing.assert_allclose(sample.old_logprobs, logprobs, atol=1e-4)
    gaps = [np.abs(new - old).max() for (new, _), (old, _) in zip(moved, expected, strict=True)]
    assert max(gaps) > 1e-2, "the step has changed the policy"
