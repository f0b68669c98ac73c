"""RLlib's Learner with one exact optimizer step per update; the gradient is the same on one learner or several."""

import copy
import functools
import math
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from ray.rllib.core import COMPONENT_RL_MODULE, DEFAULT_MODULE_ID
from ray.rllib.core.learner.torch.torch_learner import TorchLearner
from ray.rllib.core.learner.training_data import TrainingData

from algorithms.config.base import BaseConfig
from algorithms.config.placement import sends_adapter
from algorithms.learner.attention import shares_prompts, try_packed_attention, try_shared_prompts
from algorithms.learner.batch import TrainingSample
from algorithms.learner.flops import LearnerFacts, ModelShape, update_costs
from algorithms.learner.forward import ForwardSettings, ScoringModel, Statistic, score
from algorithms.learner.model import WithoutAdapter, adapted_layers, set_update_mode
from algorithms.learner.nf4 import quantize_base
from algorithms.learner.optimizer import make_adamw, step_threads, threads
from algorithms.learner.sharding import clip_gradients, compute_device, reshard, shard, sum_gradients
from algorithms.learner.start_check import find_deviation
from algorithms.learner.update import UpdateStatistics, accumulate_gradients
from algorithms.learner.weights import LearnerTensors
from algorithms.losses.base import LossSettings, load_objective
from algorithms.models.causal_lm import load_causal_lm
from algorithms.models.names import errors_named, resolve_model
from algorithms.utils.heartbeat import start_beating
from algorithms.utils.starting import READY, report_stage


class GRPOLearner(LearnerTensors, TorchLearner):
    """Trains the policy on rows whose loss weights are normalized over the whole step.

    RLlib's own `update` averages over minibatches and learners. Here gradients are summed, because the rows' weights
    are normalized already.
    """

    config: BaseConfig
    reference: Any = None
    teacher: Any = None
    # Why micro-batches are padded although `learners.packing` is on; "" where they are not.
    padded_because: str = ""
    # Why each response's prompt is computed again although `learners.share_prompts` is on.
    unshared_because: str = ""

    def build(self) -> None:
        """Load the policy and its optimizer."""
        if self.config.num_learners:
            start_beating()
        if self.config.learners_settings.num_threads:
            torch.set_num_threads(self.config.learners_settings.num_threads)
        report_stage("learner", "loading weights")
        super().build()
        report_stage("learner", READY)

    def _map_module_to_device(self, module: Any) -> None:
        """Place the policy, in shards or whole, and what is frozen beside it: the model as loaded, and a teacher."""
        lm, device = module[DEFAULT_MODULE_ID].lm, torch.device(str(self._device))
        if self.config.rl_module_settings.lora_base == "nf4":
            quantize_base(adapted_layers(lm), device)
            lm.to(device)  # what is tried with it below computes where the codes are
        if self.config.learners_settings.packing:
            self.padded_because = try_packed_attention(lm)
            if self.config.learners_settings.share_prompts and not self.padded_because:
                self.unshared_because = try_shared_prompts(lm)
        if self.config.needs_reference:
            adapted = self.config.rl_module_settings.lora_rank > 0
            self.reference = WithoutAdapter(lm) if adapted else copy.deepcopy(lm).eval().requires_grad_(False)
        self.teacher = self._load_teacher()
        for model in (lm, self.reference, self.teacher):
            if not isinstance(model, torch.nn.Module):
                continue
            if self.sharded:
                dtype = getattr(torch, self.config.rl_module_settings.dtype)
                shard(model, device, dtype=dtype, offload=self.config.learners_settings.offload)
            else:
                model.to(device)

    def _load_teacher(self) -> Any:
        """Load the frozen model of a mechanism that `uses_teacher`, in the compute dtype."""
        settings, learners = self.config.teacher_settings, self.config.learners_settings
        if settings is None:
            return None
        with errors_named(self.config.teacher_setting):
            teacher = load_causal_lm(
                resolve_model(settings.model), settings.dtype, settings.revision, settings.trust_remote_code
            )
        if learners.packing and not try_packed_attention(teacher) and learners.share_prompts:
            try_shared_prompts(teacher)
        return teacher.eval().requires_grad_(False)

    @property
    def sharded(self) -> bool:
        """Whether each learner holds only a part of the policy."""
        return self.config.learners_settings.sharding == "fsdp"

    @property
    def sends_adapter(self) -> bool:
        """Whether engines get the adapter alone."""
        return sends_adapter(self.config)

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
            # Shards are gathered in the compute dtype, which leaves nothing to autocast.
            dtype="float32" if self.sharded else self.config.rl_module_settings.dtype,
            float32_head=self.config.learners_settings.float32_head,
        )

    @property
    def loss_settings(self) -> LossSettings:
        """The configured loss, with the settings of the objective's own section."""
        training = self.config.training_settings
        section = load_objective(training.objective).section
        return LossSettings.of(training, self.config.to_sections().get(section))

    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        """Register AdamW over all trainable parameters."""
        parameters = [p for p in self.get_parameters(self.module[module_id]) if p.requires_grad]
        optimizer = make_adamw(
            parameters,
            lr=self.config.training_settings.lr,
            weight_decay=self.config.training_settings.weight_decay,
            offload=self.config.learners_settings.offload,
            eight_bit=self.config.learners_settings.moments == "8bit",
            split_weights=self.config.learners_settings.weights == "bfloat16",
        )
        self.register_optimizer(
            module_id=module_id, optimizer=optimizer, params=parameters, lr_or_lr_schedule=self.config.lr
        )

    def _make_modules_ddp_if_necessary(self) -> None:
        """Do nothing: DDP averages gradients, and ours are summed."""

    def compute_loss_for_module(self, **kwargs: Any) -> Any:
        """Raise: `update` computes the loss itself, with `algorithms.learner.update`."""
        raise NotImplementedError("GRPOLearner.update computes its loss itself")

    def update(  # type: ignore[override]  # one kind of data and one caller: algorithms.learner.group
        self,
        *,
        training_data: TrainingData,
        lr: float,
        entropies: bool = False,
        timesteps: dict[str, int] | None = None,
        **kwargs: Any,
    ) -> UpdateStatistics:
        """Take one optimizer step on this learner's share of the rows; `entropies`: see `update_learners`."""
        self._check_is_built()
        started = time.perf_counter()
        data: Any = training_data  # RLlib expects MultiAgentBatch where ours are lists of rows
        rows: list[TrainingSample] = data.batch if data.batch is not None else data.batches[0]
        self._weights_seq_no += 1
        self.before_gradient_based_update(timesteps=timesteps or {})
        self.optimizer.zero_grad(set_to_none=True)  # of an update that failed
        set_update_mode(self.lm)
        reference = self.reference if self.config.training_settings.loss_beta else None
        statistics = accumulate_gradients(self.lm, rows, self.forward_settings, self.loss_settings, reference)
        statistics.sum_entropies(keep=entropies)
        self._release_gathered_weights()
        if self.config.num_learners > 1 and not self.sharded:
            sum_gradients(parameter for parameter in self.lm.parameters() if parameter.requires_grad)
        statistics.grad_norm = self._clip_and_step(lr)
        # Now, not before the next gradient: an engine on this GPU generates in the meantime.
        self.optimizer.zero_grad(set_to_none=True)
        statistics.skipped_steps = float(not math.isfinite(statistics.grad_norm))
        self.after_gradient_based_update(timesteps=timesteps or {})
        facts = self.facts
        statistics.flops = update_costs(facts.model, rows, reference=facts.reference, shared=facts.shares_prompts)
        statistics.seconds = time.perf_counter() - started
        return statistics

    @functools.cached_property
    def facts(self) -> LearnerFacts:
        """Constants of this learner, for assigning rows by cost and for its utilization."""
        device = compute_device(self.lm)
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else None
        penalized = self.config.training_settings.loss_beta > 0
        dtype, model = self.config.rl_module_settings.dtype, ModelShape.of(self.lm)
        shared = shares_prompts(self.lm)
        return LearnerFacts(model, name, dtype, penalized, self.padded_because, shared, self.unshared_because)

    def score(
        self,
        rows: list[TrainingSample],
        *,
        entropy: bool,
        under: ScoringModel = "policy",
        statistic: Statistic = "logprobs",
    ) -> list[tuple[Any, Any]]:
        """Return log-probs and entropies of each row's response tokens under the current policy, or a frozen model.

        Another `statistic` is in the place of log-probs.
        """
        self.lm.eval()
        batches_of = self.teacher if under == "teacher" else self.lm
        model = self.reference if under == "reference" else None
        scored = score(batches_of, rows, self.forward_settings, entropy=entropy, model=model, statistic=statistic)
        self._release_gathered_weights()
        return scored

    def find_deviations(self, rows: list[TrainingSample]) -> dict[ScoringModel, str]:
        """Return what is wrong with the log-probs of the policy, and of a teacher, on these rows; "" for nothing.

        All learners call it with the same rows.
        """
        self.lm.eval()
        models: dict[ScoringModel, Any] = {"policy": self.lm}
        dtypes = {self.config.rl_module_settings.dtype}
        if self.teacher is not None and self.config.teacher_settings is not None:
            models["teacher"] = self.teacher
            dtypes.add(self.config.teacher_settings.dtype)
        dtype = "float32" if dtypes == {"float32"} else "bfloat16"
        found = {name: find_deviation(model, rows, self.forward_settings, dtype) for name, model in models.items()}
        self._release_gathered_weights()
        return found

    def get_state(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return RLlib's state, without the weights for env runners: `RolloutWorkers` sends those.

        Raises:
            NotImplementedError: the whole state was requested, and this learner holds only a part of the weights.
        """
        if kwargs.get("inference_only"):
            kwargs["not_components"] = COMPONENT_RL_MODULE
        elif self.sharded:
            raise NotImplementedError(
                "RLlib's own checkpoints read one learner, and sharded weights are spread over all: use the run's "
                "checkpoints"
            )
        return super().get_state(*args, **kwargs)

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore RLlib's state, older ones too: RLlib would keep newer weights, and restore everything else."""
        version, self._weights_seq_no = self._weights_seq_no, 0
        try:
            super().set_state(state)
        finally:
            self._weights_seq_no = self._weights_seq_no or version

    def _release_gathered_weights(self) -> None:
        for model in (self.lm, self.reference, self.teacher):
            if isinstance(model, torch.nn.Module):
                reshard(model)

    def _clip_and_step(self, lr: float) -> float:
        """Step if the gradient is finite; return its norm before clipping."""
        norm = clip_gradients(self.lm.parameters(), self.config.training_settings.grad_clip or math.inf)
        if math.isfinite(norm):
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            with self._optimizer_threads():
                self.optimizer.step()
        return norm

    def _optimizer_threads(self) -> AbstractContextManager[None]:
        """Offloaded shards are stepped by all cores: forward and backward, on the GPU, need one."""
        settings = self.config.learners_settings
        if not settings.offload:
            return nullcontext()
        return threads(step_threads(settings.num_threads, settings.num_learners))
