"""Checks before the first optimizer step: the learner against its model, the engine against the learner."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from algorithms.config.errors import ConfigError
from algorithms.grpo.types import Group, Sample
from algorithms.learner.batch import TrainingSample

# What the learner is proved on: prompts, tokens that one is cut to, tokens of a continuation, and of all together.
PROMPTS, PROMPT_TOKENS, CONTINUATION, RESPONSE_TOKENS = 3, 128, 40, 240
# Queries that may fail to give a prompt.
TRIES = 12
# Response tokens that the engine is compared on.
ENGINE_TOKENS = 512
# Mean |log-prob(engine) - log-prob(learner)| above which they are different policies, not one that is rounded.
ENGINE_BOUND = 0.5
# What a token counts as that the engine sampled with no finite log-prob, and that the learner has one for; in nats.
NOT_FINITE = 100.0


def proof_prompts(uids: Sequence[str], render: Callable[[str], np.ndarray | None]) -> list[np.ndarray]:
    """Return the tokens of the first few queries' prompts; queries whose prompt cannot be rendered are passed over."""
    found: list[np.ndarray] = []
    for uid in uids[:TRIES]:
        prompt = render(uid)
        if prompt is not None and len(prompt):
            found.append(prompt)
        if len(found) == PROMPTS:
            break
    return found


def proof_rows(prompts: Sequence[np.ndarray], context: int | None, vocabulary: int) -> list[TrainingSample]:
    """Make rows of prompts, each with several continuations from the prompts' own text: `RESPONSE_TOKENS` at least.

    Args:
        prompts: int32 [P] each; none: the vocabulary's first tokens stand for one.
        context: tokens that the model can hold; None: no bound.
        vocabulary: its size.
    """
    prompts = prompts or [np.arange(PROMPT_TOKENS, dtype=np.int32) % vocabulary]
    length = CONTINUATION if context is None else max(1, min(CONTINUATION, context // 2))
    room = PROMPT_TOKENS if context is None else max(1, min(PROMPT_TOKENS, context - length))
    each = max(2, -(-RESPONSE_TOKENS // (length * len(prompts))))
    text = np.resize(np.concatenate(prompts), (each * len(prompts), length))
    rows = []
    for number, continuation in enumerate(text):
        prompt = prompts[number % len(prompts)][-room:]
        tokens = np.concatenate([prompt, continuation]).astype(np.int32)
        rows.append(TrainingSample(tokens, np.arange(len(tokens)) >= len(prompt)))
    return rows


def comparable(groups: Iterable[Group], version: int) -> list[Sample]:
    """Return samples, `ENGINE_TOKENS` or a little more, that weights of this version have sampled alone.

    Greedy answers are left out, whose log-probs are not those of the sampling temperature.
    """
    found, tokens = [], 0
    for sample in (sample for group in groups if not group.prompt.greedy for sample in group.fresh):
        if sample.rollout.weights_version != version or sample.replayed:
            continue
        found.append(sample)
        tokens += sample.rollout.response_length
        if tokens >= ENGINE_TOKENS:
            break
    return found


def check_engine(samples: Sequence[Sample], logprobs: Sequence[np.ndarray]) -> None:
    """Compare the engine's log-probs with the learner's of the same weights.

    Args:
        samples: of these weights.
        logprobs: float32 [L], the learner's, of each.

    Raises:
        ConfigError: they are different policies; one line.
    """
    engine = np.concatenate([sample.rollout.sampling_logprobs for sample in samples])
    learner = np.concatenate(logprobs)
    known = np.isfinite(learner)  # a policy that overflowed is left to those who skip its steps
    gaps = np.where(np.isfinite(engine), np.abs(engine - learner), NOT_FINITE)[known]
    mean = float(np.mean(gaps)) if known.any() else 0.0
    if mean > ENGINE_BOUND:
        raise ConfigError(
            f"rl_module.model: the engine's log-probs of {len(gaps)} sampled tokens differ from the learner's by "
            f"{mean:.3g} nats on average, above {ENGINE_BOUND:g}: they compute different models, "
            "and nothing was trained; fix: the other env_runners.engine, both dtypes float32, or a model of another "
            "architecture"
        )
