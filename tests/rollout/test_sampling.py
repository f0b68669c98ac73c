"""Drawing tokens: the right distribution, inside the vocabulary, from a request's own numbers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.stats import chisquare

from algorithms.rollout.engines.decoding import Truncation, sample_tokens, truncated, uniform_numbers

LARGEST_UNIFORM = float(np.nextafter(np.float32(1), np.float32(0)))
LOGITS = st.floats(-80, 80, width=32) | st.just(float("-inf"))


def sample(logits, uniforms, temperature=1.0, top_p=None):
    rows = len(uniforms)
    batch = torch.as_tensor(np.asarray(logits, np.float32)).expand(rows, -1)
    nucleus = None if top_p is None else truncation(rows, top_p)
    return sample_tokens(batch, torch.as_tensor(uniforms), torch.full((rows,), temperature), nucleus)


def truncation(rows, top_p=1.0, top_k=0, min_p=0.0):
    values = (np.float32(top_p), np.int64(top_k), np.float32(min_p))
    return Truncation(*(torch.tensor(np.broadcast_to(each, rows)) for each in values))


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


@pytest.mark.parametrize("top_p", [None, 0.9])
def test_the_log_prob_is_that_of_the_distribution_that_is_sampled_from(top_p):
    logits = np.array([0.0, 1.0, 2.0, 3.0])
    tokens, logprobs = sample(logits, np.linspace(0, 0.99, 50, dtype=np.float32), 0.5, top_p)
    probabilities = torch.tensor(logits / 0.5).softmax(-1).numpy()
    expected = probabilities if top_p is None else nucleus_of(probabilities, top_p)
    assert np.allclose(logprobs, np.log(expected[tokens]), atol=1e-6)


@pytest.mark.parametrize(
    ("kept", "tokens"),
    [
        ({"top_k": 2}, [0, 1]),
        ({"top_k": 99}, [0, 1, 2, 3]),
        ({"min_p": 0.3}, [0, 1, 2]),
        ({"min_p": 1.0}, [0]),
        ({"top_k": 3, "top_p": 0.83}, [0, 1]),  # of .40, .36 and .14 among .90: top_k comes before top_p
        ({"min_p": 0.5, "top_p": 0.51}, [0]),  # of .40 and .36 among .76: so does min_p
        ({"top_p": 0.83}, [0, 1, 2]),
    ],
)
def test_what_is_kept_is_what_vllm_keeps_and_its_log_probs_are_normalized(kept, tokens):
    probabilities = torch.tensor([0.40, 0.36, 0.14, 0.10])
    logprobs = truncated(probabilities.log()[None], truncation(1, **kept))[0]
    assert torch.isfinite(logprobs).nonzero()[:, 0].tolist() == tokens
    assert torch.allclose(logprobs[tokens].exp(), probabilities[tokens] / probabilities[tokens].sum())
    vllms = pytest.importorskip("vllm.v1.sample.ops.topk_topp_sampler").apply_top_k_top_p_pytorch
    logits = probabilities.log()[None].clone()
    logits[probabilities[None] < kept.get("min_p", 0) * probabilities.max()] = -torch.inf
    k, p = torch.tensor([min(kept.get("top_k", 4), 4)]), torch.tensor([kept.get("top_p", 1.0)])
    assert torch.isfinite(vllms(logits, k, p)[0]).tolist() == torch.isfinite(logprobs).tolist()


def test_every_row_keeps_its_own_temperature_and_nucleus():
    logits = torch.tensor([[1.0, 2.0, 0.0]]).repeat(4, 1)
    uniforms = torch.tensor([0.999, 0.999, 0.0, 0.999])
    temperatures, top_p = torch.tensor([0.0, 1.0, 1.0, 1.0]), truncation(4, [1.0, 1.0, 1.0, 0.5])
    tokens, _ = sample_tokens(logits, uniforms, temperatures, top_p)
    assert tokens.tolist() == [1, 2, 0, 1]


def test_a_requests_numbers_depend_on_its_seed_alone():
    together = uniform_numbers([3, 5, 2**64 - 1], 7)
    assert torch.equal(together[1], uniform_numbers([5], 7)[0])
    assert torch.equal(together[:, :4], uniform_numbers([3, 5, 2**64 - 1], 4))
    assert not torch.equal(together[0], together[1])
    assert 0 <= float(together.min()) and float(together.max()) < 1
