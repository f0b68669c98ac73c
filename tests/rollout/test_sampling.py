"""Drawing tokens: the right distribution, inside the vocabulary, from a request's own numbers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.stats import chisquare

from algorithms.rollout.engines.decoding import sample_tokens, uniform_numbers

LARGEST_UNIFORM = float(np.nextafter(np.float32(1), np.float32(0)))
LOGITS = st.floats(-80, 80, width=32) | st.just(float("-inf"))


def sample(logits, uniforms, temperature=1.0, top_p=None):
    rows = len(uniforms)
    batch = torch.as_tensor(np.asarray(logits, np.float32)).expand(rows, -1)
    nucleus = None if top_p is None else torch.full((rows,), top_p)
    return sample_tokens(batch, torch.as_tensor(uniforms), torch.full((rows,), temperature), nucleus)


def nucleus_of(probabilities, top_p):
    """The smallest set of most likely tokens whose mass reaches `top_p`, renormalized."""
    kept, mass = np.zeros_like(probabilities), 0.0
    for token in np.argsort(-probabilities):
        if mass >= top_p:
            break
        kept[token], mass = probabilities[token], mass + probabilities[token]
    return kept / kept.sum()


@settings(max_examples=200, deadline=None)
@given(
    logits=arrays.arrays(np.float32, st.integers(1, 60), elements=LOGITS).filter(lambda x: np.isfinite(x).any()),
    uniform=st.floats(0, LARGEST_UNIFORM, width=32) | st.sampled_from([0.0, LARGEST_UNIFORM]),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    top_p=st.sampled_from([None, 1e-6, 0.5, 0.999]),
)
def test_a_draw_is_a_possible_token_of_the_vocabulary(logits, uniform, temperature, top_p):
    tokens, logprobs = sample(logits, np.array([uniform], np.float32), temperature, top_p)
    assert 0 <= int(tokens[0]) < len(logits)
    assert np.isfinite(logits[int(tokens[0])])
    assert np.isfinite(float(logprobs[0])) and float(logprobs[0]) <= 1e-6


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, None), (0.6, None), (1.5, None), (1.0, 0.8), (0.7, 0.5)])
def test_draws_follow_the_distribution(temperature, top_p):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=24) * 1.5
    scaled = np.exp(logits / temperature)
    expected = scaled / scaled.sum()
    if top_p is not None:
        expected = nucleus_of(expected, top_p)
    draws = 40_000
    tokens, _ = sample(logits, rng.random(draws, dtype=np.float32), temperature, top_p)
    counts = np.bincount(tokens.numpy(), minlength=len(logits))
    possible = expected > 0
    assert counts[~possible].sum() == 0
    assert chisquare(counts[possible], draws * expected[possible]).pvalue > 1e-3


def test_the_log_prob_is_that_of_the_whole_distribution_at_the_temperature():
    logits = np.array([0.0, 1.0, 2.0, 3.0])
    tokens, logprobs = sample(logits, np.linspace(0, 0.99, 50, dtype=np.float32), 0.5, top_p=0.9)
    expected = torch.tensor(logits / 0.5).log_softmax(-1)
    assert torch.allclose(logprobs.double(), expected[tokens], atol=1e-6)


def test_every_row_keeps_its_own_temperature_and_nucleus():
    logits = torch.tensor([[1.0, 2.0, 0.0]]).repeat(4, 1)
    uniforms = torch.tensor([0.999, 0.999, 0.0, 0.999])
    temperatures, top_p = torch.tensor([0.0, 1.0, 1.0, 1.0]), torch.tensor([1.0, 1.0, 1.0, 0.5])
    tokens, _ = sample_tokens(logits, uniforms, temperatures, top_p)
    assert tokens.tolist() == [1, 2, 0, 1]


def test_a_requests_numbers_depend_on_its_seed_alone():
    together = uniform_numbers([3, 5, 2**64 - 1], 7)
    assert torch.equal(together[1], uniform_numbers([5], 7)[0])
    assert torch.equal(together[:, :4], uniform_numbers([3, 5, 2**64 - 1], 4))
    assert not torch.equal(together[0], together[1])
    assert 0 <= float(together.min()) and float(together.max()) < 1
