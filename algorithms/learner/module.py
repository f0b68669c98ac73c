"""A Hugging Face causal LM as an RLModule."""

from typing import Any

import torch
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from transformers import AutoModelForCausalLM


class CausalLMModule(TorchRLModule):
    """Holds the policy with float32 masters.

    `model_config`: `model` (folder or Hub id), `revision`, `trust_remote_code`, `gradient_checkpointing`.
    """

    lm: Any

    def setup(self) -> None:
        """Load the model; raises OSError when there is none at `model`."""
        settings: Any = self.model_config  # the dict of `GRPOConfig._model_config_auto_includes`
        self.lm = AutoModelForCausalLM.from_pretrained(
            settings["model"],
            dtype=torch.float32,
            revision=settings.get("revision"),
            trust_remote_code=settings.get("trust_remote_code", False),
        )
        if settings.get("gradient_checkpointing"):
            self.lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {"logits": self.lm(input_ids=batch["input_ids"], attention_mask=batch.get("attention_mask")).logits}

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        """CPU copies of all weights, tied heads included: an engine's packed head goes stale without them."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self.lm.state_dict().items()}

    def set_state(self, state: dict[str, torch.Tensor]) -> None:
        """Copy a state dict in; raises RuntimeError when names or shapes differ."""
        self.lm.load_state_dict(state, strict=True)
