"""A small random model, and rows of every kind that an update may hold."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from algorithms.grpo.types import Group, Prompt, Sample
from algorithms.rollout.types import Context, Rollout
from tests.own_ray import own_ray

VOCABULARY = 60
RESPONSE_LIMIT = 12


def small_model(seed: int = 0, tied: bool = True) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=tied,
        initializer_range=0.3,
    )
    return Qwen2ForCausalLM(config)


@pytest.fixture
def padded_lm() -> Qwen2ForCausalLM:
    return small_model()


@pytest.fixture(params=["padded", "packed"])
def batches(request) -> str:
    return request.param


@pytest.fixture
def lm(padded_lm, batches) -> Qwen2ForCausalLM:
    return prepared(padded_lm, batches)


def prepared(model: Qwen2ForCausalLM, batches: str) -> Qwen2ForCausalLM:
    from algorithms.learner.attention import use_packed_attention

    if batches == "packed":
        assert use_packed_attention(model)
    return model


@pytest.fixture
def reference(batches) -> torch.nn.Module:
    return prepared(small_model(seed=1), batches).eval().requires_grad_(False)


def masks(rng: np.random.Generator) -> Iterator[tuple[Context, np.ndarray]]:
    """Plain rows, a quoted attempt in front, and two turns of the policy's own with a user turn between."""
    for _ in range(5):
        yield Context.PLAIN, np.repeat([False, True], [rng.integers(3, 9), rng.integers(1, RESPONSE_LIMIT + 1)])
    yield Context.REFLECTION, np.repeat([False, True], [25, 6])
    yield Context.PLAIN, np.repeat([False, True, False, True], [4, 3, 5, 4])


@pytest.fixture
def groups(lm) -> list[Group]:
    """Fresh and replayed samples; some old log-probs are so far off that the clip is active."""
    from algorithms.learner.batch import TrainingSample
    from algorithms.learner.forward import ForwardSettings, score

    rng = np.random.default_rng(0)
    made = [Group(Prompt("a")), Group(Prompt("b")), Group(Prompt("c"))]
    for index, (context, mask) in enumerate(masks(rng)):
        tokens = rng.integers(0, VOCABULARY, len(mask)).astype(np.int32)
        ((own, _),) = score(lm, [TrainingSample(tokens, mask)], ForwardSettings(), entropy=False)
        old = (own + rng.normal(0, 0.35, mask.sum())).astype(np.float32)
        engine = (old + rng.normal(0, 0.6, mask.sum())).astype(np.float32)
        rollout = Rollout(
            index, "abc"[index % 3], index % 3, context, tokens, mask, engine, 0.0, False, False, "different", 0
        )
        sample = Sample(rollout, 0.0, old_logprobs=old, advantages=float(rng.normal()), replayed=index in (2, 5))
        made[index % 3].samples.append(sample)
    made[1].samples[0].advantages = 0.0
    return made


@pytest.fixture(scope="package")
def learner_ray() -> Iterator[None]:
    with own_ray(4):
        yield
