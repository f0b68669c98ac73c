"""Count the bytes that a learner's forward pass keeps for its backward pass, on tensors without memory."""

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoModelForCausalLM

from algorithms.config.machine import RLModuleSettings
from algorithms.learner.attention import NAME, SUPPORTED_LAYERS
from algorithms.learner.batch import TrainingSample, packed_batch, padded_batch, shared_batch
from algorithms.learner.chunked_logprobs import CHUNK, CHUNK_ON_GPU
from algorithms.learner.model import set_update_mode
from algorithms.learner.prompt_groups import KEYS_PER_TOKEN
from algorithms.models.causal_lm import read_config, recomputes
from algorithms.models.names import ModelFacts, resolve_model
from algorithms.preflight.context_window import ContextUse

if TYPE_CHECKING:
    from algorithms.config.base import BaseConfig

# Tokens that are counted; the rest follows, as all but attention's own scores grows with the tokens.
_COUNTED = 2048
# What the C library keeps of freed tensors on a CPU, where it takes those below 32 MiB from one heap.
_HEAP = 1.2
# Settings of the model that its activations depend on.
_OF_ACTIVATIONS = {"model", "revision", "trust_remote_code", "dtype", "gradient_checkpointing"}
# Of a chunk's logits: they exist for their softmax and, in part, for their gradient.
_LOGITS_COPIES = 1.5


def microbatch_tokens(config: "BaseConfig", use: ContextUse) -> tuple[int, bool]:
    """Return the most tokens that one micro-batch of a learner has, and whether it is one of several of its step."""
    training, learners = config.training_settings, config.learners_settings
    groups = training.queries_per_step + config.extra_prompts()
    # Of several turns only the first prompt is sure to be shared.
    prompt = use.prompt if _shares(config) else 0
    own = training.queries_per_step * (use.row - prompt) + config.extra_prompts() * (use.longest - prompt)
    tokens = own * training.group_size // training.minibatches
    # A group's rows are shuffled over the optimizer steps, each of which computes their prompt.
    tokens += groups * prompt * min(training.group_size, training.minibatches) // training.minibatches
    tokens //= max(1, learners.num_learners)
    most = max(learners.token_budget, max(use.longest, use.row) if groups > training.queries_per_step else use.row)
    return min(tokens, most), tokens > most


def activation_bytes(config: "BaseConfig", model: ModelFacts, use: ContextUse) -> int | None:
    """Return the bytes of a micro-batch's activations, a chunk of its logits and the head's gradient; None if unknown.

    A model with code of its own need not run on tensors without memory.
    """
    tokens, _ = microbatch_tokens(config, use)
    try:
        module, training, learners = config.rl_module_settings, config.training_settings, config.learners_settings
        shared = learners.share_prompts and training.group_size > 1
        group = training.group_size if shared else 1

        def kept(recomputes: bool) -> float:
            asked = module.changed("rl_module", {"gradient_checkpointing": recomputes})
            of_activations = asked.model_dump_json(include=_OF_ACTIVATIONS)
            return tokens * _kept_a_token(of_activations, learners.packing, group, min(use.plain, _COUNTED))

        held = kept(module.gradient_checkpointing)
        layer = kept(False) / model.layers if module.gradient_checkpointing else 0.0  # one at a time is recomputed
    except Exception:  # of a model with code of its own, anything
        return None
    slack, chunk = (1.0, CHUNK_ON_GPU) if config.learners_settings.num_gpus_per_learner else (_HEAP, CHUNK)
    logits = int(_LOGITS_COPIES * chunk * 4 * (model.vocabulary or 0))
    # The gradient of a trained head is summed in float32, whatever the weights are, beside that of other micro-batches.
    head = 0 if module.lora_rank else 4 * model.head
    return int(slack * held + max(slack * layer, logits)) + head


def full_loss_bytes(module: RLModuleSettings, rows: int, length: int) -> int | None:
    """Return the bytes of a supervised step's activations and logits, of rows padded to one length.

    None where they cannot be counted, as in `activation_bytes`.
    """
    try:
        with FakeTensorMode():
            lm = _model(module)
            tokens = torch.zeros(rows, min(length, _COUNTED), dtype=torch.long)
            kept = _Kept(lm)
            with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda tensor: tensor), _computing_in(module):
                logits = lm(input_ids=tokens, labels=tokens, use_cache=False).logits
    except Exception:  # of a model with code of its own, anything
        return None
    # The logits themselves, and their gradient.
    return int(_HEAP * (sum(kept.sizes.values()) + 2 * 4 * logits.numel()) * length / tokens.shape[1])


def _computing_in(module: RLModuleSettings) -> contextlib.AbstractContextManager[Any]:
    half = module.dtype != "float32"
    return torch.autocast("cpu", dtype=getattr(torch, module.dtype)) if half else contextlib.nullcontext()


@functools.lru_cache
def _kept_a_token(settings: str, packing: bool, group: int, length: int) -> float:
    """Return the bytes that a forward pass keeps for a token.

    Copies of the weights in a lower precision are no part of it: a longer batch has no more of them.

    Args:
        settings: of the model, as JSON.
        packing: whether rows are packed, where the model allows it.
        group: rows that share a prompt.
        length: tokens of a row.
    """
    module = RLModuleSettings.model_validate_json(settings)
    kept, tokens = _kept_bytes(module, packing, group, length, 1)
    if module.dtype == "float32":
        return kept / tokens
    more, of = _kept_bytes(module, packing, group, length, 2)
    return (more - kept) / (of - tokens)


def _kept_bytes(module: RLModuleSettings, packing: bool, group: int, length: int, times: int) -> tuple[int, int]:
    """Return the bytes that the pass of a batch, so many times as large, keeps, and for how many tokens."""
    with FakeTensorMode():
        lm = _model(module)
        packed = packing and _packs(lm.config)
        shared = packed and group > 1
        if packed:
            lm.set_attn_implementation(NAME)
        if shared:
            rows = [row for number in range(times) for row in _most_copies(group, number)]
        else:
            rows = [_row(1, length - 1)] * max(1, _COUNTED // length) * times
        make = shared_batch if shared else packed_batch if packed else padded_batch
        batch = make(rows, torch.device("cpu"))
        kept = _Kept(lm)
        with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda tensor: tensor), _computing_in(module):
            lm.get_decoder()(input_ids=batch.tokens, use_cache=False, **batch.inputs)
    return sum(kept.sizes.values()), batch.real


def _row(prompt: int, response: int, token: int = 0) -> TrainingSample:
    return TrainingSample(np.full(prompt + response, token, np.int32), np.arange(prompt + response) >= prompt)


def _most_copies(group: int, token: int) -> list[TrainingSample]:
    """Return a group whose attention copies its prompt's keys as often as a micro-batch of its tokens allows."""
    group = min(group, _COUNTED // 32)
    prompt = min((KEYS_PER_TOKEN - 1) * _COUNTED // group, _COUNTED - group)
    return [_row(prompt, (_COUNTED - prompt) // group, token)] * group


def _model(module: RLModuleSettings) -> Any:
    config = read_config(resolve_model(module.model), module.revision, module.trust_remote_code)
    lm: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=module.trust_remote_code)
    if getattr(config, "attn_logit_softcapping", None):
        lm.set_attn_implementation("eager")  # as it is loaded
    if recomputes(lm, module.gradient_checkpointing):
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    set_update_mode(lm)
    return lm


def _shares(config: "BaseConfig") -> bool:
    """Whether the learner is likely to compute a group's prompt once."""
    module, learners = config.rl_module_settings, config.learners_settings
    if not (learners.packing and learners.share_prompts):
        return False
    return _packs(read_config(resolve_model(module.model), module.revision, module.trust_remote_code))


def _packs(model: Any) -> bool:
    """Whether the learner is likely to pack sequences; it finds out with numbers, which there are none of here."""
    text = model.get_text_config()
    known = set(getattr(text, "layer_types", None) or ()) <= SUPPORTED_LAYERS
    return known and not getattr(text, "attn_logit_softcapping", None)


class _Kept:
    """The storages that autograd keeps, the parameters' own apart."""

    def __init__(self, lm: Any) -> None:
        self._own = {parameter.untyped_storage()._cdata for parameter in lm.parameters()}
        self._alive: list[Any] = []
        self.sizes: dict[int, int] = {}

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        """Count a tensor's storage, once."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._own and storage._cdata not in self.sizes:
            self._alive.append(storage)  # else another one could get its address
            self.sizes[storage._cdata] = storage.nbytes()
        return tensor
