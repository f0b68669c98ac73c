"""A text that ends a response, in training: each turn is trained up to it, and the next turn follows its end token."""

import numpy as np

from algorithms.models.names import resolve_model
from algorithms.models.tokenizer import load_tokenizer

from .runs_of import train

STOP = "}"


def test_each_turn_ends_with_the_text_and_is_trained_as_it_was_sampled(grpo_config, build, small_pool):
    """Two turns: a cut one is closed by the template's end token, which the policy did not write."""
    algorithm = build(grpo_config.environment(data=small_pool, max_turns=2).env_runners(stop=[STOP]))
    (record,) = train(algorithm, 1)
    tokenizer = load_tokenizer(resolve_model("embedded:tiny"))
    rollouts = [sample.rollout for group in algorithm.batch.rolled_out for sample in group.samples]
    stopped = [rollout for rollout in rollouts if not rollout.truncated]
    several, closed = 0, 0
    for rollout in stopped:
        edges = np.flatnonzero(np.diff(np.concatenate([[0], rollout.loss_mask.astype(int), [0]])))
        turns = list(zip(edges[::2], edges[1::2], strict=True))
        several += len(turns) > 1
        for start, end in turns:
            text = tokenizer.decode(rollout.tokens[start:end])
            assert text.count(STOP) == text.endswith(STOP)
            if text.endswith(STOP) and end < len(rollout.tokens):
                assert tokenizer.decode(rollout.tokens[end : end + 1]) == "<|end|>"
                closed += 1
    assert several and closed
    assert record["policy/logp_mismatch_max"] < 1e-3
    assert record["policy/trained_tokens"] > 0
