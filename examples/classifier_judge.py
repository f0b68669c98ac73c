r"""A reward from a small classifier, which an actor loads once and calls with batches.

    # judges.py
    from examples.classifier_judge import Classifier

    class Polite(Classifier):
        model = "my/classifier"  # a folder, or a model of the Hub

    python -m algorithms.grpo environment.id=r3env/Function-v0 environment.data=problems.jsonl \
        environment.options.reward=judges:Polite environment.options.correct_at=0.5 \
        env_runners.reward_actor.replicas=1 env_runners.reward_actor.concurrency=32

On a GPU: `env_runners.reward_actor.num_gpus=0.2`, or whatever share of its memory the classifier takes.
"""

from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer


class Classifier:
    """Pays the probability of the last class of `model`; derive one of your own with another."""

    model = "distilbert/distilbert-base-uncased-finetuned-sst-2-english"

    def __init__(self) -> None:
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.tokenizer = AutoTokenizer.from_pretrained(self.model)
        self.classifier = AutoModelForSequenceClassification.from_pretrained(self.model).to(self.device).eval()

    @torch.inference_mode()
    def __call__(self, completions: list[str], **kwargs: Any) -> list[float]:
        """Return the probability for each response of a batch."""
        batch = self.tokenizer(completions, padding=True, truncation=True, return_tensors="pt").to(self.device)
        return self.classifier(**batch).logits.float().softmax(-1)[:, -1].tolist()
