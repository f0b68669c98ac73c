"""A Hugging Face causal LM as an RLModule."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from ray.rllib.core.rl_module.torch.torch_rl_module import TorchRLModule
from torch import nn
from transformers.pytorch_utils import Conv1D

from algorithms.config.errors import ConfigError
from algorithms.learner.sharding import whole
from algorithms.models.causal_lm import load_causal_lm, recomputes

if TYPE_CHECKING:
    from peft import LoraConfig


class CausalLMModule(TorchRLModule):
    """The policy: trained weights are float32 or its bfloat16 halves, an adapter's frozen base is in the compute dtype.

    `model_config`: `model` (folder or Hub id), `revision`, `trust_remote_code`, `gradient_checkpointing`, `dtype`,
    `weights` (the dtype of those that are trained), `lora_rank`, `lora_alpha`, `lora_targets`.
    """

    lm: Any

    def setup(self) -> None:
        """Load the model; raises OSError if there is none at `model`, ConfigError for wrong `lora_targets`."""
        settings: Any = self.model_config  # the dict of `BaseConfig._model_config_auto_includes`
        rank = settings.get("lora_rank", 0)
        self.lm = load_causal_lm(
            settings["model"],
            settings["dtype"] if rank else settings.get("weights", "float32"),
            settings.get("revision"),
            settings.get("trust_remote_code", False),
        )
        disable_dropout(self.lm)
        if rank:
            try:
                add_adapter(self.lm, rank=rank, alpha=settings["lora_alpha"], targets=settings["lora_targets"])
            except ValueError as error:
                raise ConfigError(f"rl_module.lora_targets: {error}") from error
        if recomputes(self.lm, settings.get("gradient_checkpointing", False)):
            self.lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        return {"logits": self.lm(input_ids=batch["input_ids"], attention_mask=batch.get("attention_mask")).logits}

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        """Return CPU copies of all parameters, adapters not merged; engines take `weights.full_weights`."""
        return {name: tensor.detach().cpu().clone() for name, tensor in self.lm.state_dict().items()}

    def set_state(self, state: dict[str, torch.Tensor]) -> None:
        """Load a state dict; raises RuntimeError, and loads nothing, if names or shapes differ."""
        own = self.lm.state_dict()
        alike = {name for name in own.keys() & state.keys() if own[name].shape == state[name].shape}
        if other := (own.keys() | state.keys()) - alike:  # torch would load those that fit, and raise then
            raise RuntimeError(f"{len(other)} weights are not the model's in name and shape, such as {min(other)!r}")
        self.lm.load_state_dict(state, strict=True)


def disable_dropout(lm: nn.Module) -> None:
    """Set every dropout probability of a model to 0, in place.

    An update computes the log-probs that replay stores and ratios start from. With dropout, which is active in
    training, they would be those of another policy than the one that sampled.
    """
    for module in lm.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        # Some layers keep the probability and call the function, or read it from the configuration at each call
        # (Falcon); `layerdrop` leaves whole layers out (OPT).
        for owner in (module, getattr(module, "config", None)):
            for name, value in getattr(owner, "__dict__", {}).items():
                if "drop" in name and isinstance(value, float):
                    setattr(owner, name, 0.0)


def set_update_mode(lm: nn.Module) -> None:
    """Set a model to training mode, but for what draws noise in it: an update computes what scoring computes.

    Routers draw their experts (Phi-3.5-MoE) or multiply with noise (Mixtral's jitter). Other modules stay: models with
    code of their own may compute without gradients in the other mode, and only this one recomputes activations.
    """
    lm.train()
    for module in lm.modules():
        if any("jitter" in name for name in vars(module)):
            module.training = False


ADAPTER = "default"


def add_adapter(lm: Any, *, rank: int, alpha: float, targets: Sequence[str] = ()) -> None:
    """Freeze a model and add a trainable low-rank adapter to its linear layers, in place.

    The adapter's weights are float32 and the same in every process; initially they change nothing.

    Args:
        lm: a Hugging Face model.
        rank: of the adapter's two factors.
        alpha: the adapter's product is scaled by alpha / rank.
        targets: endings of the layers' names; none: all linear layers but the head.

    Raises:
        ValueError: a target that is not the name of a linear layer, or that is the head.
    """
    from peft import inject_adapter_in_model

    check_targets(lm, targets)
    lm.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        inject_adapter_in_model(lora_config(rank, alpha, targets), lm, adapter_name=ADAPTER)
    for parameter in lm.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()


def lora_config(rank: int, alpha: float, targets: Sequence[str] = ()) -> "LoraConfig":
    """Return peft's configuration of the adapter."""
    from peft import LoraConfig

    return LoraConfig(
        r=rank,
        lora_alpha=alpha,  # type: ignore[arg-type]  # declared int, but only divided by the rank
        target_modules=list(targets) or "all-linear",
        bias="none",
        task_type="CAUSAL_LM",
    )


def check_targets(lm: Any, targets: Sequence[str]) -> None:
    """Check that adapters can be added to these layers of a model, see `add_adapter`; raises ValueError."""
    head = lm.get_output_embeddings()
    linear = [name for name, module in lm.named_modules() if isinstance(module, nn.Linear | Conv1D)]
    names = [name for name in linear if lm.get_submodule(name) is not head]
    for target in targets:
        if not any(name == target or name.endswith(f".{target}") for name in names):
            known = ", ".join(dict.fromkeys(name.rsplit(".", 1)[-1] for name in names))
            raise ValueError(f"{target!r} is not a linear layer of the model, the head left out; there are {known}")


def adapted_layers(lm: nn.Module) -> dict[str, Any]:
    """Return the layers that have an adapter, by name."""
    return {name: module for name, module in lm.named_modules() if ADAPTER in getattr(module, "lora_A", ())}


def merged_weight(layer: Any) -> torch.Tensor:
    """Return a layer's weight with its adapter added, float32; the layer is not changed.

    With a sharded layer all learners have to call it.
    """
    delta = whole(layer.lora_B[ADAPTER].weight).float() @ whole(layer.lora_A[ADAPTER].weight).float()
    if layer.fan_in_fan_out:  # GPT-2 keeps its matrices the other way round
        delta = delta.T
    return whole(layer.base_layer.weight).float() + layer.scaling[ADAPTER] * delta


def save_adapter_config(
    folder: Path, *, model: str, revision: str | None, rank: int, alpha: float, targets: Sequence[str]
) -> None:
    """Write `adapter_config.json`: `peft.PeftModel.from_pretrained(base, folder)` then loads the adapter."""
    config = lora_config(rank, alpha, targets)
    config.base_model_name_or_path, config.revision = model, revision
    config.inference_mode = True
    config.save_pretrained(str(folder))


def peft_name(parameter: str) -> str:
    """Return the name of an adapter's parameter in peft's files."""
    return f"base_model.model.{parameter.replace(f'.{ADAPTER}.', '.')}"


class WithoutAdapter:
    """The model without its adapter: the reference of a KL term, without a copy.

    Args:
        lm: the model with the adapter.
    """

    def __init__(self, lm: Any) -> None:
        self.lm, self.config = lm, lm.config
        self._layers = list(adapted_layers(lm).values())

    def get_decoder(self) -> Any:
        """Return the decoder; call it without gradient."""
        return self._decode

    def get_output_embeddings(self) -> Any:
        """Return the head, which never has an adapter."""
        return self.lm.get_output_embeddings()

    def _decode(self, *args: Any, **kwargs: Any) -> Any:
        with self._disabled():
            return self.lm.get_decoder()(*args, **kwargs)

    @contextmanager
    def _disabled(self) -> Iterator[None]:
        # peft's own switch also takes the adapter's `requires_grad` away, in the middle of the policy's graph.
        for layer in self._layers:
            layer._disable_adapters = True
        try:
            yield
        finally:
            for layer in self._layers:
                layer._disable_adapters = False
