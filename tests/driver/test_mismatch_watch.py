"""When log-probs of engine and learner differ by more than rounding explains."""

import copy

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from algorithms.grpo.monitors import EXACT, IN_INT8, ROUNDED, GradingWatch, MismatchWatch

FLOAT, MIXED = ("float32", "float32"), ("bfloat16", "float32")
TOKENS = (12, 64)


@pytest.mark.parametrize(
    ("threshold", "dtypes", "limit"),
    [
        (None, FLOAT, EXACT),
        (None, MIXED, ROUNDED),
        (None, ("int8", "float32"), IN_INT8),
        (0.3, FLOAT, 0.3),
    ],
)
def test_it_warns_above_what_the_types_explain_and_once(threshold, dtypes, limit):
    watch = MismatchWatch(threshold, dtypes)
    assert watch.observe(limit, lag=0) is None
    warning = watch.observe(1.01 * limit, lag=0)
    assert warning is not None and "tied head" in warning and "env_runners.logp_mismatch_warning" in warning
    assert watch.observe(2 * limit, lag=0) is None


def test_a_step_that_waits_for_graders_names_what_helps_once():
    watch = GradingWatch()

    def observe(grade, step, collect=60.0):
        return watch.observe({"time/grade": grade, "time/step": step, "time/collect_rollouts": collect})

    assert observe(9.0, 9.0) is observe(12.0, 25.0) is observe(13.0, 25.0, collect=1.0) is None
    warning = observe(13.0, 25.0)
    assert warning.startswith("time/grade: ") and "env_runners.reward_actor for" in warning
    assert "more replicas or a larger concurrency if they are there already" in warning
    assert observe(13.0, 25.0) is None


def test_a_policy_that_lags_differs_on_purpose_and_nothing_measured_is_no_mismatch():
    watch = MismatchWatch(None, FLOAT)
    assert watch.observe(5.0, lag=1) is None
    assert watch.observe(float("nan"), lag=0) is None
    assert watch.observe(5.0, lag=0) is not None


@pytest.fixture(scope="module")
def learner():
    """A random model of eight layers whose weights are as large as trained ones."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "num_hidden_layers": 8, "num_attention_heads": 2, "num_key_value_heads": 1}
    config = Qwen3Config(**sizes, head_dim=64, intermediate_size=384, vocab_size=4096, initializer_range=0.06)
    return Qwen3ForCausalLM(config).eval()


@torch.no_grad()
def logprobs(lm):
    tokens = torch.from_numpy(np.random.default_rng(0).integers(0, 4096, TOKENS))
    scores = lm(input_ids=tokens).logits[:, :-1].float().log_softmax(-1)
    return scores.gather(-1, tokens[:, 1:, None]).flatten().numpy()


def mean_gap(learner, engine):
    return float(np.abs(logprobs(learner) - logprobs(engine)).mean())


def test_rounding_in_bfloat16_is_no_mismatch(learner):
    engine = copy.deepcopy(learner).to(torch.bfloat16)
    gap = mean_gap(learner, engine)
    assert gap > EXACT, "float32 would be exact"
    assert MismatchWatch(None, MIXED).observe(gap, lag=0) is None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_head_that_the_engine_did_not_get_is_one(learner, dtype):
    engine = copy.deepcopy(learner)
    head = engine.lm_head.weight.detach()
    stale = head + 0.3 * head.std() * torch.randn(head.shape, generator=torch.Generator().manual_seed(1))
    engine.lm_head.weight = torch.nn.Parameter(stale)
    engine = engine.to(getattr(torch, dtype))
    assert np.abs(logprobs(learner) - logprobs(engine)).max() > 0.5
    assert MismatchWatch(None, (dtype, "float32")).observe(mean_gap(learner, engine), lag=0) is not None
