"""Training on conversations that are rendered anew at every turn, with a template that shortens earlier answers."""

import shutil

import numpy as np
import pytest

from algorithms.models.names import resolve_model
from algorithms.models.tokenizer import load_tokenizer
from algorithms.rollout.types import NEW_CONTEXT

from .runs_of import largest_difference, train, weights

SHORTENS = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{{ m.content[-6:] if m.role == 'assistant' else m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{{ mood | default('') }}{% endif %}"
)


@pytest.fixture
def rendering(r3_config, tmp_path, small_pool):
    """Two turns of wrong answers, replay and reflection beside them."""
    folder = shutil.copytree(resolve_model("embedded:tiny"), tmp_path / "model")
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    tokenizer = load_tokenizer(str(folder))
    tokenizer.chat_template = SHORTENS
    tokenizer.save_pretrained(folder)
    return (
        r3_config.environment(data=small_pool, max_turns=2, system="1+1=2")
        .rl_module(model=str(folder), earlier_turns="rendered", chat_template_kwargs={"mood": "+"})
        .reflection(min_attempts=1, threshold=0.9)
    )


@pytest.mark.parametrize("packing", [True, False], ids=["packed", "padded"])
def test_the_learner_sees_each_turn_in_the_context_that_it_was_sampled_in(rendering, packing):
    algorithm = rendering.learners(packing=packing).build_algo()
    try:
        before = weights(algorithm)
        records = train(algorithm, 2)
        samples = [sample for group in algorithm.batch.rolled_out for sample in group.samples]
        several = [s for s in samples if np.any(s.rollout.tokens == NEW_CONTEXT)]
        assert len(several) > 5
        assert {s.rollout.context for s in samples} == {"plain", "reflection"}
        assert all(record["policy/logp_mismatch_max"] < 1e-3 for record in records)
        assert largest_difference(before, weights(algorithm)) > 0
        (fresh,) = [s for s in several if not s.replayed][:1]
        assert [m["role"] for m in fresh.rollout.messages[:2]] == ["system", "user"]
        # As it is stored and replayed.
        failure = algorithm.history.sample_failure(fresh.rollout.uid, np.random.default_rng(0))
        assert failure is None or failure.tokens.min() >= NEW_CONTEXT
        stored = next(s for s in several if not s.rollout.correct and not s.replayed)
        again = algorithm.history.sample_failure(stored.rollout.uid, np.random.default_rng(0))
        assert again is not None and NEW_CONTEXT in again.tokens
    finally:
        algorithm.stop()
