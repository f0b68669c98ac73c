"""RLlib's Learner, with one exact optimizer step per update: local or one of many, the gradient is the same."""

import copy
import math
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.core.learner.training_data import TrainingData

from algorithms.grpo.loss import LossSettings
from algorithms.learner import policy
from algorithms.learner.optimizer_state import pack_optimizer, unpack_optimizer
from algorithms.learner.policy import ForwardSettings
from algorithms.learner.rows import TrainingRow
from algorithms.learner.update import UpdateStatistics, accumulate_gradients

if TYPE_CHECKING:
    from algorithms.grpo.config import GRPOConfig


class GRPOLearner(TorchLearner):
    """Trains the policy on rows whose loss weights are normalised over the whole step.

    RLlib's own `update` averages over minibatches and learners; here gradients are summed, because the rows already
    carry the step's normaliser.
    """

    config: "GRPOConfig"
    reference: torch.nn.Module | None = None

    def build(self) -> None:
        """Load the policy and, for a KL term, freeze a copy of it as the reference."""
        if self.config.learners_settings.num_threads:
            torch.set_num_threads(self.config.learners_settings.num_threads)
        super().build()
        if self.config.training_settings.beta > 0:
            self.reference = copy.deepcopy(self.lm).eval().requires_grad_(False)

    @property
    def lm(self) -> Any:
        """The Hugging Face model."""
        module: Any = self.module[DEFAULT_MODULE_ID].unwrapped()
        return module.lm

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The policy's AdamW."""
        return self.get_optimizer(DEFAULT_MODULE_ID)

    @property
    def forward_settings(self) -> ForwardSettings:
        """How this configuration evaluates the policy."""
        return ForwardSettings(
            temperature=self.config.env_runners_settings.temperature,
            token_budget=self.config.learners_settings.token_budget,
            dtype=self.config.rl_module_settings.dtype,
        )

    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        """AdamW over all parameters."""
        parameters = self.get_parameters(self.module[module_id])
        optimizer = torch.optim.AdamW(
            parameters,
            lr=self.config.training_settings.lr,
            weight_decay=self.config.training_settings.weight_decay,
        )
        self.register_optimizer(
            module_id=module_id, optimizer=optimizer, params=parameters, lr_or_lr_schedule=self.config.lr
        )

    def _make_modules_ddp_if_necessary(self) -> None:
        """Nothing: DDP averages gradients, and ours are summed by `_sum_gradients`."""

    def compute_loss_for_module(self, **kwargs: Any) -> Any:
        """Not used: `update` computes the loss with `algorithms.learner.update`."""
        raise NotImplementedError("GRPOLearner.update computes its loss itself")

    def update(  # type: ignore[override]  # one kind of data and one caller: algorithms.grpo.learners
        self,
        *,
        training_data: TrainingData,
        lr: float,
        timesteps: dict[str, int] | None = None,
        **kwargs: Any,
    ) -> UpdateStatistics:
        """Take one optimizer step on this learner's share of the rows."""
        self._check_is_built()
        data: Any = training_data  # RLlib expects MultiAgentBatch where ours are lists of rows
        rows: list[TrainingRow] = data.batch if data.batch is not None else data.batches[0]
        self._weights_seq_no += 1
        self.before_gradient_based_update(timesteps=timesteps or {})
        self.optimizer.zero_grad(set_to_none=True)
        self.lm.train()
        training = self.config.training_settings
        statistics = accumulate_gradients(
            self.lm,
            rows,
            self.forward_settings,
            LossSettings.of(training),
            self.reference,
        )
        self._sum_gradients()
        statistics.grad_norm = self._clip_and_step(lr)
        statistics.skipped_steps = float(not math.isfinite(statistics.grad_norm))
        self.after_gradient_based_update(timesteps=timesteps or {})
        return statistics

    def score(self, rows: list[TrainingRow], *, entropy: bool) -> list[tuple[Any, Any]]:
        """Log-probs and entropies of each row's response tokens under the policy as it stands."""
        self.lm.eval()
        return policy.score(self.lm, rows, self.forward_settings, entropy=entropy)

    def get_optimizer_tensors(self) -> dict[str, torch.Tensor]:
        """The optimizer's moments and step counts by parameter name, on the CPU."""
        return pack_optimizer(self.lm, self.optimizer)

    def set_optimizer_tensors(self, tensors: dict[str, torch.Tensor]) -> None:
        """Put back what `get_optimizer_tensors` gave."""
        unpack_optimizer(self.lm, self.optimizer, tensors)

    def _sum_gradients(self) -> None:
        """Add up the learners' gradients; a learner without rows takes part with zeros."""
        if self.config.num_learners < 2:
            return
        parameters = [p for p in self.lm.parameters() if p.requires_grad]
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        joined = torch.cat([parameter.grad.reshape(-1) for parameter in parameters])
        torch.distributed.all_reduce(joined)
        offset = 0
        for parameter in parameters:
            parameter.grad = joined[offset : offset + parameter.numel()].view_as(parameter)
            offset += parameter.numel()

    def _clip_and_step(self, lr: float) -> float:
        """Step unless the gradient is not finite; returns its norm before clipping."""
        parameters = [p for p in self.lm.parameters() if p.grad is not None]
        if not parameters:
            return 0.0
        limit = self.config.training_settings.grad_clip or math.inf
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, limit))
        if math.isfinite(norm):
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            self.optimizer.step()
        return norm
