"""What the learners of a group do: each function runs in every one of them, and returns arrays."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from algorithms.learner import weights
from algorithms.learner.attention import shares_prompts, use_packed_attention
from algorithms.learner.batch import TrainingSample
from algorithms.learner.flops import ModelShape, update_costs
from algorithms.learner.forward import ForwardSettings, score
from algorithms.learner.model import WithoutAdapter, add_adapter
from algorithms.learner.prompt_groups import assign_groups, prompt_groups
from algorithms.learner.sharding import clip_gradients, reshard, shard, sum_gradients, whole
from algorithms.learner.update import accumulate_gradients
from algorithms.learner.weights import optimizer_tensors, put_optimizer_tensors
from algorithms.losses.base import LossSettings
from algorithms.train.tensor_files import read_tensors, write_tensors
from tests.hand_made import penalized

VOCABULARY = 61


@dataclass(frozen=True)
class Setting:
    """How a learner holds its model."""

    sharded: bool = False
    device: str = "cpu"
    tied: bool = True
    dtype: torch.dtype = torch.float32
    offload: bool = False
    checkpointing: bool = False
    lora_rank: int = 0
    beta: float = 0.0
    share_prompts: bool = False


def model(setting: Setting) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=setting.tied,
        initializer_range=0.2,
    )
    lm = Qwen2ForCausalLM(config)
    if setting.lora_rank:
        lm.to(setting.dtype)
        add_adapter(lm, rank=setting.lora_rank, alpha=2.0 * setting.lora_rank)
        with torch.no_grad():  # an adapter that has been trained: at first its second factor is zero
            for name, parameter in lm.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(std=0.1)
    if setting.checkpointing:
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return lm.train()


def rows(count: int = 11) -> list[TrainingSample]:
    """Rows of unlike length; every fourth has no advantage."""
    rng = np.random.default_rng(0)
    made = []
    for index in range(count):
        mask = np.arange(rng.integers(6, 30)) >= 3
        logprobs = rng.normal(-4, 0.5, mask.sum()).astype(np.float32)
        advantage = float(rng.normal()) if index % 4 else 0.0
        tokens = rng.integers(0, VOCABULARY, len(mask)).astype(np.int32)
        made.append(TrainingSample(tokens, mask, advantage, 1 / 50, None, logprobs))
    return made


def with_advantages(rows: list[TrainingSample], kind: str) -> list[TrainingSample]:
    """The rows with one advantage each (`scalar`), the same for each token (`broadcast`), or others (`token`)."""
    rng = np.random.default_rng(1)
    scales = {row_id: rng.normal(size=row.response_length) for row_id, row in enumerate(rows)}
    if kind == "scalar":
        return rows
    return [
        replace(row, advantages=(row.advantages * (scales[row_id] ** (kind == "token"))).astype(np.float32))
        for row_id, row in enumerate(rows)
    ]


class Learner:
    """A share of the policy, trained as `GRPOLearner` does."""

    def __init__(self, rank: int, setting: Setting) -> None:
        self.world = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        self.rank, self.setting = rank, setting
        self.lm = model(setting)
        if setting.share_prompts:
            assert use_packed_attention(self.lm) and shares_prompts(self.lm)
        self.forward = ForwardSettings(temperature=0.8, token_budget=40)
        self.reference: Any = None
        if setting.beta:
            adapted = setting.lora_rank > 0
            self.reference = WithoutAdapter(self.lm) if adapted else copy.deepcopy(self.lm).requires_grad_(False)
        if setting.sharded:
            for lm in (self.lm, self.reference):
                if isinstance(lm, torch.nn.Module):
                    shard(lm, torch.device(setting.device), dtype=setting.dtype, offload=setting.offload)
        else:
            self.lm.to(setting.device)
        self.trained = [p for p in self.lm.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=1e-2, fused=setting.offload or None)

    def backward(self, rows: list[TrainingSample]) -> None:
        self.accumulate(rows[self.rank :: self.world])

    def accumulate(self, rows: list[TrainingSample]) -> None:
        self.optimizer.zero_grad()
        rows = penalized(rows, self.setting.beta)
        accumulate_gradients(self.lm, rows, self.forward, LossSettings(), self.reference)
        reshard(self.lm)
        if self.world > 1 and not self.setting.sharded:
            sum_gradients(self.trained)

    def step(self, rows: list[TrainingSample]) -> float:
        self.backward(rows)
        norm = clip_gradients(self.trained, 1.0)
        self.optimizer.step()
        return norm

    def gradients(self) -> dict[str, np.ndarray]:
        named = {name: p.grad for name, p in self.lm.named_parameters() if p.grad is not None}
        return {name: whole(gradient).float().cpu().numpy().copy() for name, gradient in named.items()}

    def weights(self) -> dict[str, np.ndarray]:
        return {name: tensor.float().cpu().numpy().copy() for name, tensor in weights.full_weights(self.lm)}


def gradients(rank: int, setting: Setting, count: int = 11, advantages: str = "scalar") -> dict[str, np.ndarray]:
    learner = Learner(rank, setting)
    learner.backward(with_advantages(rows(count), advantages))
    return learner.gradients()


def groups() -> list[TrainingSample]:
    """Rows of four prompts, in turn; one group is as large as the others together."""
    made = rows(24)
    prompts = [row.tokens[:length] for row, length in zip(made, (2, 3, 5, 4), strict=False)]
    shared = []
    for index, row in enumerate(made):
        prompt = prompts[index % 4 if index < 16 else 0]
        tokens = np.concatenate([prompt, row.tokens])
        mask = np.arange(len(tokens)) >= len(prompt)
        logprobs = np.full(mask.sum(), -4, np.float32)
        shared.append(replace(row, tokens=tokens, loss_mask=mask, sampling_logprobs=logprobs))
    return shared


def gradients_of_groups(rank: int, setting: Setting) -> tuple[list[int], dict[str, np.ndarray]]:
    """A learner's rows, dealt by group, and the gradients of all."""
    learner, everything = Learner(rank, setting), groups()
    shape = ModelShape(weights=1000.0, head=100.0, layers=())

    def cost(indices: Sequence[int]) -> float:
        return update_costs(shape, [everything[i] for i in indices], reference=False, shared=True)

    shares = assign_groups(prompt_groups([row.parts for row in everything]), cost, learner.world)
    learner.accumulate([everything[i] for i in shares[rank]])
    return shares[rank], learner.gradients()


def gradients_without_advantage(rank: int, setting: Setting) -> dict[str, np.ndarray]:
    learner = Learner(rank, setting)
    learner.backward([replace(row, advantages=0.0) for row in rows()])
    return learner.gradients()


def clipped(rank: int, setting: Setting, limit: float) -> tuple[float, dict[str, np.ndarray]]:
    learner = Learner(rank, setting)
    learner.backward(rows())
    norm = clip_gradients(learner.trained, limit)
    return norm, learner.gradients()


def norm_with_one_infinity(rank: int, setting: Setting) -> float:
    """One learner's share of one gradient is infinite."""
    learner = Learner(rank, setting)
    learner.backward(rows())
    if rank == 0:
        gradient: Any = learner.trained[0].grad
        (gradient.to_local() if setting.sharded else gradient)[0] = float("inf")
    return clip_gradients(learner.trained, 1.0)


def devices_held(rank: int, setting: Setting) -> set[str]:
    """Where the shards and the moments lie after a step."""
    learner = Learner(rank, setting)
    learner.step(rows())
    tensors = [*learner.trained, *(state["exp_avg"] for state in learner.optimizer.state.values())]
    return {_local(tensor).device.type for tensor in tensors}


def elements_held(rank: int, setting: Setting) -> tuple[int, int, set[str]]:
    """Elements of weights and of moments that this learner holds after a step, and the types of its tensors."""
    learner = Learner(rank, setting)
    learner.step(rows())
    held = [_local(p) for p in learner.lm.parameters()]
    moments = [_local(state["exp_avg"]) for state in learner.optimizer.state.values()]
    types = {str(tensor.dtype) for tensor in [*held, *moments]}
    return sum(t.numel() for t in held), sum(t.numel() for t in moments), types


def compute_types(rank: int, setting: Setting) -> tuple[str, str, str]:
    """Types of the last hidden state, of the head between forward and backward, and of the gradient."""
    learner = Learner(rank, setting)
    hidden = learner.lm.get_decoder()(input_ids=torch.ones(1, 5, dtype=torch.long)).last_hidden_state
    head = learner.lm.get_output_embeddings().weight
    (hidden @ head.T).sum().backward()
    reshard(learner.lm)
    gradient = learner.trained[0].grad
    assert gradient is not None
    return str(hidden.dtype), str(head.dtype), str(gradient.dtype)


def steps(rank: int, setting: Setting, count: int) -> tuple[list[float], dict[str, np.ndarray]]:
    learner = Learner(rank, setting)
    norms = [learner.step(rows()) for _ in range(count)]
    return norms, learner.weights()


def scores(rank: int, setting: Setting, count: int) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """Of this learner's share of the rows."""
    learner = Learner(rank, setting)
    scored = score(learner.lm, rows(count)[rank :: learner.world], learner.forward, entropy=True)
    reshard(learner.lm)
    return scored


def train_and_save(rank: int, setting: Setting, folder: Path) -> dict[str, np.ndarray]:
    """Two steps, a checkpoint, and the weights after a third."""
    learner = Learner(rank, setting)
    for _ in range(2):
        learner.step(rows())
    sent = {
        "model": weights.full_weights(learner.lm),
        "optimizer": optimizer_tensors(learner.lm, learner.optimizer),
        "adapter_model": weights.adapter_weights(learner.lm),
    }
    for stem, tensors in sent.items():
        buckets = weights.buckets(tensors, max_bytes=20_000)
        if rank == 0:
            write_tensors(folder, stem, buckets)
        else:
            list(buckets)
    learner.step(rows())
    return learner.weights()


def load_and_train(rank: int, setting: Setting, folder: Path) -> dict[str, np.ndarray]:
    """The weights after the step that follows a checkpoint."""
    learner = Learner(rank, setting)
    if setting.lora_rank:
        for tensors in read_tensors(folder, "adapter_model"):
            weights.put_adapter_weights(learner.lm, tensors)
    else:
        for tensors in read_tensors(folder, "model"):
            weights.put_weights(learner.lm, tensors)
    for tensors in read_tensors(folder, "optimizer"):
        put_optimizer_tensors(learner.lm, learner.optimizer, tensors)
    learner.step(rows())
    return learner.weights()


def _local(tensor: Any) -> torch.Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
