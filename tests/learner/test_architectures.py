"""Ten architectures as the sweep builds them: the learner's log-probs and gradient are the model's own."""

import pytest

from algorithms.learner import forward
from algorithms.models.logits import LogitTransform, logit_transform
from benchmarks.architectures import COSINE, NORM, examine, make_small

# What each model's forward does to the product of its head; packed or padded.
TRIED = {
    "llama": (LogitTransform(), "packed"),
    "gemma2": (LogitTransform(softcap=2.0), "padded"),
    "granite": (LogitTransform(scale=4.0), "packed"),
    "granitemoe": (LogitTransform(scale=4.0), "packed"),
    "cohere": (LogitTransform(scale=0.25), "packed"),
    "cohere2": (LogitTransform(scale=0.25), "packed"),
    "falcon_h1": (LogitTransform(scale=0.25), "padded"),
    "recurrent_gemma": (LogitTransform(softcap=2.0), "padded"),
    "minicpm3": (LogitTransform(scale=0.25), "padded"),
    "hyperclovax": (LogitTransform(scale=0.25), "packed"),
}


@pytest.mark.parametrize("name", TRIED)
def test_log_probs_and_gradient_are_those_of_the_models_own_forward(name, monkeypatch):
    transform, verdict = TRIED[name]
    lm = make_small(name)
    assert logit_transform(lm.config) == transform
    found = examine(name, lm)
    assert (found.verdict, found.reason if verdict == "packed" else "") == (verdict, "")
    assert found.cosine > COSINE and abs(found.norm - 1) < NORM
    if transform != LogitTransform():  # and the comparison sees it
        monkeypatch.setattr(forward, "logit_transform", lambda config: LogitTransform())
        found = examine(name, make_small(name))
        assert found.verdict == "refused"
        assert (
            "a cap" if transform.softcap else f"multiplies the head's product by {transform.scale:g}"
        ) in found.reason
