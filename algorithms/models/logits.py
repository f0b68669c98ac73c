"""What a model's own `forward` does between hidden states and logits, beside the product with its output head.

Learners compute that product themselves, in chunks. The start of a run compares them with the model's own logits
(`algorithms.learner.start_check`), so that a model that is missing here is refused.
"""

from dataclasses import dataclass
from typing import Any

# Fields of configurations, and the models whose `forward` reads them (transformers 5.19).
MULTIPLIES: dict[str, tuple[str, ...]] = {
    "logit_scale": ("cohere", "cohere2", "cohere2_moe", "cohere_compass"),
    "lm_head_multiplier": ("falcon_h1",),
    "logits_scaling": ("hyperclovax",),
}
DIVIDES: dict[str, tuple[str, ...]] = {
    "logits_scaling": (
        "granite",
        "granite_swa",
        "granitemoe",
        "granitemoe_swa",
        "granitemoehybrid",
        "granitemoeshared",
        "minicpm3",  # its hidden states, and its head has no bias
    ),
    "logits_mup_width_multiplier": ("inkling", "inkling_text"),  # its hidden states, too
}
# Of every model that has them.
CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
VOCABULARY = "unpadded_vocab_size"


@dataclass(frozen=True)
class LogitTransform:
    """How logits follow from the head's product: scaled first, then capped.

    Args:
        scale: factor on the product.
        softcap: caps logits at ±softcap by tanh; None: no cap.
        vocabulary: the first rows of the head that count; None: all.
    """

    scale: float = 1.0
    softcap: float | None = None
    vocabulary: int | None = None


def logit_transform(config: Any) -> LogitTransform:
    """Return what a model of this configuration, a composite one's text, does to the product of its head."""
    config = config.get_text_config()
    scale = 1.0
    for field, models in MULTIPLIES.items():
        if config.model_type in models and (value := getattr(config, field, None)) is not None:
            scale *= value
    for field, models in DIVIDES.items():
        if config.model_type in models and (value := getattr(config, field, None)) is not None:
            scale /= value
    caps = (getattr(config, field, None) for field in CAPS)
    return LogitTransform(scale, next(filter(None, caps), None), getattr(config, VOCABULARY, None))
