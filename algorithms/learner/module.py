"""A Hugging Face causal LM as an RLModule."""

from typing import Any

import torch
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import nn
from transformers import AutoModelForCausalLM

from algorithms.configuration.errors import ConfigError
from algorithms.learner.lora import add_adapter


class CausalLMModule(TorchRLModule):
    """Holds the policy: float32 masters of what is trained, an adapter's frozen base in the compute dtype.

    `model_config`: `model` (folder or Hub id), `revision`, `trust_remote_code`, `gradient_checkpointing`, `dtype`,
    `lora_rank`, `lora_alpha`, `lora_targets`.
    """

    lm: Any

    def setup(self) -> None:
        """Load the model; raises OSError when there is none at `model`, ConfigError for wrong `lora_targets`."""
        settings: Any = self.model_config  # the dict of `GRPOConfig._model_config_auto_includes`
        rank = settings.get("lora_rank", 0)
        self.lm = AutoModelForCausalLM.from_pretrained(
            settings["model"],
            dtype=getattr(torch, settings["dtype"]) if rank else torch.float32,
            revision=settings.get("revision"),
            trust_remote_code=settings.get("trust_remote_code", False),
            use_safetensors=True,  # the other format is pickle
        )
        switch_dropout_off(self.lm)
        if rank:
            try:
                add_adapter(self.lm, rank=rank, alpha=settings["lora_alpha"], targets=settings["lora_targets"])
            except ValueError as error:
                raise ConfigError(f"rl_module.lora_targets: {error}") from error
        if settings.get("gradient_checkpointing"):
            self.lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {"logits": self.lm(input_ids=batch["input_ids"], attention_mask=batch.get("attention_mask")).logits}

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        """CPU copies of all parameters as they are, adapters apart; engines take `weights.full_weights`."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self.lm.state_dict().items()}

    def set_state(self, state: dict[str, torch.Tensor]) -> None:
        """Copy a state dict in; raises RuntimeError when names or shapes differ."""
        self.lm.load_state_dict(state, strict=True)


def switch_dropout_off(lm: nn.Module) -> None:
    """Set every probability of dropout in a model to 0, in place.

    An update measures the log-probs that replay stores and ratios start from. Dropout, on while a model trains, would
    make them those of another policy than the one that sampled.
    """
    for module in lm.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        # Some layers keep the number, and call the function.
        for name, value in vars(module).items():
            if "dropout" in name and isinstance(value, float):
                setattr(module, name, 0.0)
