"""A learner is proved against its model's own forward; what differs is refused with its cause."""

import copy
import functools
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import RecurrentGemmaConfig, RecurrentGemmaForCausalLM

from algorithms.config.errors import ConfigError
from algorithms.grpo.first_checks import RESPONSE_TOKENS, check_engine, comparable, proof_prompts, proof_rows
from algorithms.grpo.types import Group, Sample
from algorithms.learner import start_check
from algorithms.learner.attention import NAME, use_packed_attention
from algorithms.learner.forward import ForwardSettings, score
from algorithms.learner.model import add_adapter
from algorithms.learner.start_check import find_deviation
from algorithms.rollout.types import Prompt, Request, Sampling
from tests.hand_made import answer

from .conftest import VOCABULARY, small_model


def rows():
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, VOCABULARY, length).astype(np.int32) for length in (9, 31, 120)]
    return proof_rows(prompts, 128, VOCABULARY)


def on_logits(function):
    """A model whose forward does something to the product of its head, which the head does not show."""
    lm = small_model()
    lm.lm_head.register_forward_hook(lambda module, inputs, logits: function(logits))
    use_packed_attention(lm)
    return lm.eval()


def found(lm, dtype="float32"):
    return find_deviation(lm, rows(), ForwardSettings(dtype=dtype), dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("packed", [True, False])
def test_nothing_is_found_in_a_plain_model(dtype, packed):
    lm = small_model().eval()
    if packed:
        use_packed_attention(lm)
    assert found(lm, dtype) == ""


def test_what_bfloat16_costs_the_model_itself_is_no_deviation():
    """Kernels that round large logits otherwise differ by more than the bound, and no more than from float32."""
    generator = torch.Generator().manual_seed(0)

    def rounded_otherwise(logits):
        noise = torch.rand(logits.shape, generator=generator) - 0.5
        return logits if logits.dtype == torch.float32 else logits + 2.0**-7 * noise * logits.abs()

    lm = on_logits(rounded_otherwise)
    with torch.no_grad():
        lm.lm_head.weight.mul_(10)
        settings = ForwardSettings(dtype="bfloat16")
        learner = np.concatenate([logprobs for logprobs, _ in score(lm, rows(), settings, entropy=False)])
        own = np.concatenate([start_check._own_logprobs(lm, row, settings) for row in rows()])
    assert np.abs(learner - own).mean() > start_check.BOUNDS["bfloat16"]
    assert found(lm, "bfloat16") == found(lm) == ""
    lm.lm_head.register_forward_hook(lambda module, inputs, logits: 0.5 * logits)
    assert "multiplies the head's product by 0.5" in found(lm, "bfloat16")


def test_a_head_that_does_not_fit_is_refused_in_one_line():
    lm = small_model().eval()
    lm.lm_head = torch.nn.Linear(7, VOCABULARY)
    line = found(lm)
    assert line.startswith(
        "the learner cannot compute log-probs of this architecture (ValueError: expected hidden [N, D]"
    )
    assert line.endswith("fix: a model of another architecture")


def test_nothing_is_found_in_one_with_an_adapter():
    lm = small_model()
    add_adapter(lm, rank=4, alpha=8.0)
    with torch.no_grad():
        for name, parameter in lm.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2)
    use_packed_attention(lm)
    assert found(lm.eval()) == ""


BIAS = 3 * torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(0))
CAUSES = {
    "scale": (
        lambda logits: 0.5 * logits,
        "scale of the logits, as its forward multiplies the head's product by 0.5",
    ),
    "cap": (lambda logits: 2 * torch.tanh(logits / 2), "a cap, or another function of single logits"),
    "bias": (lambda logits: logits + BIAS.to(logits.dtype), "the head's bias"),
    "other": (lambda logits: logits.roll(1, -1), "does more between the hidden states and the logits"),
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CAUSES)
def test_what_a_forward_does_to_its_logits_is_named(name, dtype):
    function, cause = CAUSES[name]
    line = found(on_logits(function), dtype)
    assert cause in line and "fix: " in line and "\n" not in line


def test_packing_is_named_where_rows_agree_one_by_one():
    """Recurrent states run from sequence to sequence."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "lru_width": 32}
    config = RecurrentGemmaConfig(vocab_size=VOCABULARY, num_hidden_layers=3, **sizes, initializer_range=0.3)
    lm = RecurrentGemmaForCausalLM(config).eval()
    lm.attention_as_loaded = lm.config._attn_implementation
    assert found(lm) == ""
    lm.set_attn_implementation(NAME)
    line = found(lm)
    assert "packing, as row by row they agree; fix: learners.packing=false" in line


def test_a_difference_below_rounding_is_none_and_one_above_is():
    head = small_model().lm_head.weight.detach()
    for size, refused in ((1e-6, False), (1e-2, True)):
        noise = size * torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(1)) * head.norm()
        assert bool(found(on_logits(lambda logits, noise=noise: logits + noise))) == refused


def test_the_rows_are_prompts_with_continuations_within_the_context():
    prompts = [np.arange(length, dtype=np.int32) for length in (5, 400, 30)]
    for given, context in ((prompts, None), (prompts, 64), (prompts[:1], 20), ([], None)):
        made = proof_rows(given, context, 50)
        assert sum(row.response_length for row in made) >= 200
        assert all(len(row.tokens) <= (context or 10**6) and not row.loss_mask[0] for row in made)
        begins = [row.tokens[: row.parts[0].prompt_length].tobytes() for row in made]
        assert len(set(begins)) < len(begins), "prompts are shared"
    assert RESPONSE_TOKENS >= 200


def test_queries_without_a_prompt_are_passed_over():
    rendered = {"a": None, "b": np.zeros(0, np.int32), "c": np.ones(3, np.int32), "d": np.ones(4, np.int32)}
    assert [len(prompt) for prompt in proof_prompts(list(rendered), rendered.get)] == [3, 4]


def test_a_policy_that_overflows_is_left_to_those_who_skip_its_steps():
    lm = small_model().eval()
    with torch.no_grad():
        lm.model.norm.weight.fill_(torch.nan)
    assert found(lm) == ""


@pytest.mark.parametrize(
    ("engine", "learner", "refused"),
    [
        ([-1.0, -2.0], [-1.1, -2.0], False),
        ([-1.0, -2.0], [-3.0, -2.0], True),
        ([np.nan, np.nan], [-1.0, -2.0], True),
        ([-np.inf, -2.0], [-1.0, -2.0], True),
        ([np.nan, -2.0], [np.nan, -2.0], False),
        ([-1.0, -2.0], [np.nan, np.nan], False),
    ],
)
def test_an_engine_of_another_model_or_without_log_probs_is_refused(engine, learner, refused):
    rollout = answer(Request(0, Prompt("a"), 0, 0, Sampling()), prompt=[1], response=[2, 3], correct=True)
    rollout = replace(rollout, sampling_logprobs=np.array(engine, np.float32))
    call = functools.partial(check_engine, [Sample(rollout, 1.0)], [np.array(learner, np.float32)])
    if not refused:
        call()
        return
    with pytest.raises(ConfigError, match="they compute different models, and nothing was trained"):
        call()


def test_greedy_answers_and_those_of_other_weights_are_not_compared():
    def group(version, **prompt):
        asked = Prompt("a", **prompt)
        rollout = answer(Request(0, asked, 0, 0, Sampling()), prompt=[1], response=[2, 3], correct=True)
        return Group(asked, [Sample(replace(rollout, weights_version=version), 1.0)])

    greedy, old, sampled = group(3, greedy=True), group(2), group(3)
    assert comparable([greedy, old, sampled], 3) == sampled.samples


def test_the_model_is_left_as_it_was():
    lm = small_model().eval()
    use_packed_attention(lm)
    before, state = lm.config._attn_implementation, copy.deepcopy(lm.state_dict())
    assert found(lm) == ""
    assert lm.config._attn_implementation == before
    assert all(torch.equal(tensor, lm.state_dict()[name]) for name, tensor in state.items())
