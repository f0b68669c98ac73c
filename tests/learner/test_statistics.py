"""What scoring measures of a response beside its log-probs, and what terms of the loss read: from whole logits."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from algorithms.learner.batch import TrainingSample
from algorithms.learner.forward import ForwardSettings, score
from algorithms.learner.loss import LossInputs
from algorithms.losses.base import LossSettings
from algorithms.losses.term import POLICY
from tests.learner.conftest import VOCABULARY

FORWARD = ForwardSettings(temperature=0.7, token_budget=24)


def rows():
    rng, made = np.random.default_rng(0), []
    for prompt, response in ((4, 5), (4, 1), (3, 0), (2, 7)):
        tokens = rng.integers(0, VOCABULARY, prompt + response).astype(np.int32)
        made.append(TrainingSample(tokens, np.repeat([False, True], [prompt, response])))
    return made


@pytest.mark.parametrize("statistic", ["vocabulary_logprobs", "mean_states"])
def test_a_statistic_is_that_of_whole_logits(lm, padded_lm, statistic):
    found = score(lm, rows(), FORWARD, entropy=False, statistic=statistic)
    assert found[2][0].size == 0 and all(entropies is None for _, entropies in found)
    for (values, _), row in zip(found, rows(), strict=True):
        if not row.response_length:
            continue
        tokens = torch.tensor(row.tokens.tolist())
        before = torch.tensor(np.flatnonzero(row.loss_mask)) - 1
        with torch.no_grad():
            batch = score_inputs(padded_lm, tokens)
        expected = batch[statistic][before]
        expected = expected.mean(0) if statistic == "mean_states" else expected
        np.testing.assert_allclose(values, expected.numpy(), rtol=1e-4, atol=1e-5)


def score_inputs(lm, tokens):
    """Each position's mean log-prob over the vocabulary, and its last hidden state, without packing."""
    states = lm.get_decoder()(input_ids=tokens[None], **whole(lm, len(tokens))).last_hidden_state[0]
    logits = states @ lm.get_output_embeddings().weight.T
    return {"mean_states": states, "vocabulary_logprobs": (logits / 0.7).log_softmax(-1).mean(-1)}


def whole(lm, length):
    from algorithms.learner.attention import is_packed
    from algorithms.learner.batch import packed_batch

    if not is_packed(lm):
        return {}
    row = TrainingSample(np.zeros(length, np.int32), np.arange(length) > 0)
    return packed_batch([row], torch.device("cpu")).inputs


def test_a_term_reads_the_mean_log_prob_at_the_next_token_of_its_response():
    made = [replace(row, terms={POLICY: 1.0}) for row in rows()]
    inputs = LossInputs.of(made, torch.device("cpu"), LossSettings())
    found = inputs.with_vocabulary(torch.arange(1.0, 14.0)).columns["next_vocabulary_logprobs"]
    assert found.tolist() == [2, 3, 4, 5, 0, 0, 8, 9, 10, 11, 12, 13, 0]
