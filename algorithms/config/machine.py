"""The settings of what runs where: the model, the inference engines and the learners. Imports no Ray."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from algorithms.config.schema import Affects, ByMachine, Settings, setting


class RLModuleSettings(Settings):
    """The causal language model to train."""

    AFFECTS: ClassVar[Affects] = Affects.ANSWERS

    model: Annotated[str, Field(min_length=1)] = setting(
        "embedded:tiny",
        "`embedded:tiny`, a folder in Hugging Face's format, or a model's id on the Hub.",
        affects=Affects.EVALUATION,
        hparam=True,
    )
    revision: str | None = setting(
        None,
        "Branch, tag or commit of a model on the Hub; null: its main branch.",
        affects=Affects.EVALUATION,
    )
    chat_template_kwargs: dict[str, Any] = setting(
        {},
        "Variables for the model's chat template, in training and in evaluation: `{enable_thinking: false}`.",
        affects=Affects.EVALUATION,
    )
    earlier_turns: Literal["sampled", "rendered"] = setting(
        "sampled",
        "What later turns see of the conversation. `sampled`: every sampled token, reasoning included. `rendered`: "
        "what the chat template renders from it, mostly without the reasoning of earlier turns "
        "(docs/guides/own-model.md).",
        affects=Affects.EVALUATION,
    )
    dtype: Literal["float32", "bfloat16"] = setting(
        ByMachine("bfloat16", "float32"),
        "Compute dtype of the learners; master weights are always float32.",
    )
    gradient_checkpointing: bool = setting(
        ByMachine(True, False),
        "Whether to recompute activations in the backward pass: less memory, a second forward pass, the same gradient.",
    )
    trust_remote_code: bool = setting(
        False, "Whether to run model code that comes with the model.", affects=Affects.ANSWERS | Affects.CODE
    )
    lora_rank: int = setting(
        0,
        "Rank of a low-rank adapter that is trained instead of the model (LoRA, needs peft); 0: train the model.",
        hparam=True,
        ge=0,
    )
    lora_alpha: float = setting(32.0, "Scale of the adapter: its product is multiplied by this over its rank.", gt=0)
    lora_targets: list[str] = setting(
        [], "Names of the layers that get an adapter: `[q_proj, v_proj]`; empty: all linear layers except the head."
    )
    lora_base: Literal["dtype", "nf4"] = setting(
        "dtype",
        "What a learner holds of the layers under an adapter: `rl_module.dtype`, or `nf4`, 4 bits (QLoRA, needs "
        "bitsandbytes; docs/guides/small-gpus.md). Engines and files get the weights that these stand for.",
    )


# What turns an adapter off.
WITHOUT_ADAPTER: Mapping[str, Any] = {"lora_rank": 0, "lora_targets": [], "lora_base": "dtype"}


class RewardActorSettings(Settings):
    """Actors in which the reward functions of r3env/Function-v0 stay loaded, or that hold whole environments."""

    AFFECTS: ClassVar[Affects] = Affects.NOTHING

    replicas: int = setting(
        0, "Actors that hold the reward functions; 0: each call has a fork of its own, which can be killed.", ge=0
    )
    num_cpus: float = setting(1.0, "CPUs that each reserves in Ray; may be a fraction.", ge=0)
    num_gpus: float = setting(0.0, "GPUs that each reserves in Ray; may be a fraction.", ge=0)
    concurrency: int = setting(
        128,
        "Responses that a function judges at once in an actor: in coroutines if it is `async`, else in threads. One "
        "that takes `completions` gets at most so many in a batch.",
        ge=1,
    )
    retries: int = setting(
        2, "How often a call that raised, or whose actor died, is repeated. One that took too long is not.", ge=0
    )
    rate: float | None = setting(None, "Calls per second of all actors together; null: no limit.", gt=0)
    environments: bool = setting(
        False,
        "Whether the actors hold whole environments, `concurrency` calls at a time, in place of reward functions; "
        "`retries` and `rate` have no effect then.",
    )
    resources: dict[str, float] = setting({}, "Further resources of Ray that each reserves: `{docker: 1}`.")


class EnvRunnerSettings(Settings):
    """The env runners: actors that hold an inference engine and run episodes with it."""

    AFFECTS: ClassVar[Affects] = Affects.ANSWERS

    engine: Literal["transformers", "vllm"] = setting(ByMachine("vllm", "transformers"), "Inference engine.")
    num_env_runners: int = setting(
        0, "Env runner actors; 0: one engine in the driver's process.", affects=Affects.NOTHING, ge=0
    )
    spares: int = setting(
        0,
        "Spare actors with a started engine and the current weights. A spare replaces an env runner that is lost; it "
        "reserves the same CPUs and GPUs.",
        affects=Affects.NOTHING,
        ge=0,
    )
    dtype: Literal["float32", "bfloat16", "float16"] = setting(
        ByMachine("bfloat16", "float32"),
        "Data type of the engine's weights and cache; `float16` for GPUs that have no bfloat16, such as a T4.",
    )
    max_response_tokens: int = setting(
        8192,
        "Length in tokens at which a response is truncated.",
        affects=Affects.EVALUATION,
        hparam=True,
        ge=1,
    )
    response_chunks: int = setting(
        1,
        "Chunks that the longest response is generated in (Delethink): each further one is half as long as the first, "
        "and sees the prompt and a short carryover alone. The model's context holds the prompt and one chunk. 1: a "
        "response sees all of itself.",
        affects=Affects.EVALUATION,
        ge=1,
    )
    max_context_tokens: int | None = setting(
        None,
        "Tokens of a context in episodes of several turns (SUPO). Where the next response and a summary might exceed "
        "it, the policy first writes the summary, and continues behind its first prompt and that alone. null: one "
        "context, as long as the model's.",
        affects=Affects.EVALUATION,
        ge=1,
    )
    max_summaries: int = setting(
        7,
        "Summaries in an episode with `env_runners.max_context_tokens`; one that needs more ends as truncated.",
        affects=Affects.EVALUATION,
        ge=0,
    )
    max_model_len: int | None = setting(
        None,
        "Maximum length in tokens of a sequence in a vLLM engine; null: what prompts, responses and quoted attempts "
        "need, within the model's context; with further turns all of it, as far as half of the cache holds it and "
        "`learners.token_budget` takes it.",
        affects=Affects.ANSWERS,
        ge=1,
    )
    temperature: float = setting(1.0, "Sampling temperature.", affects=Affects.EVALUATION, hparam=True, gt=0)
    stop: list[Annotated[str, Field(min_length=1)]] = setting(
        [],
        "Texts that end a response, beside the model's end tokens: `['</answer>']`. The token that completes one is "
        "the response's last, a part of its text, and trained on.",
        affects=Affects.EVALUATION,
    )
    stop_token_ids: list[Annotated[int, Field(ge=0)]] = setting(
        [], "Ids of tokens that end a response likewise.", affects=Affects.EVALUATION
    )
    max_num_seqs: int = setting(
        128, "Maximum number of responses that an engine generates at once.", affects=Affects.NOTHING, ge=1
    )
    num_cpus_per_env_runner: float = setting(
        1.0, "CPUs that each env runner reserves in Ray; may be a fraction.", affects=Affects.NOTHING, ge=0
    )
    num_gpus_per_env_runner: float = setting(
        0.0, "GPUs that each env runner reserves in Ray; may be a fraction.", affects=Affects.NOTHING, ge=0
    )
    num_threads: int | None = setting(
        None, "Torch threads of an engine; null: torch's default.", affects=Affects.NOTHING, ge=1
    )
    weight_transfer: Literal["auto", "object_store", "ipc", "nccl"] = setting(
        "auto",
        "How weights travel from the learners to the engines: Ray's object store (works everywhere), CUDA IPC "
        "(engine and learner on one GPU) or NCCL (on different ones). `auto` chooses by where they run "
        "(docs/guides/cluster.md).",
        affects=Affects.LEARNERS,
    )
    lora_weights: Literal["merged", "adapter"] = setting(
        "merged",
        "What engines get of an adapter (`rl_module.lora_rank`). `merged`: all weights, the adapter added. `adapter`: "
        "the adapter alone, megabytes, which vLLM computes beside each layer (docs/guides/large-models.md).",
        affects=Affects.LEARNERS,
    )
    cache_in_flight: Literal["recompute", "keep"] = setting(
        "recompute",
        "What happens to the KV cache of running responses when weights change (`training.max_off_policy_steps` "
        "above 0, vLLM). `recompute`: compute it again with the new weights. `keep`: keep the old values, which "
        "costs nothing, but the log-probs then belong to neither policy.",
        affects=Affects.LEARNERS,
    )
    sleep_while_training: bool | None = setting(
        None,
        "Whether vLLM engines free their GPU memory between rollouts; null: only where a learner is on the same GPU "
        "and `training.max_off_policy_steps` is 0.",
        affects=Affects.LEARNERS,
    )
    timeout_s: float = setting(
        600.0, "Seconds without an answer after which an env runner counts as lost.", affects=Affects.NOTHING, gt=0
    )
    step_timeout_s: float = setting(
        1800.0,
        "Time limit in seconds for creating, resetting or stepping an environment, waiting for graders included. "
        "After it the episode fails, and that environment is not used again.",
        affects=Affects.NOTHING,
        gt=0,
    )
    reward_actor: RewardActorSettings = setting(RewardActorSettings(), "Actors that hold reward functions.")
    max_failed_share: float = setting(
        0.5,
        "Share of a training step's episodes that may fail, that is, whose environment, agent or grading raises or "
        "runs out of time; such episodes are left out. More of them end the run. 1: only a step in which all fail.",
        affects=Affects.NOTHING,
        gt=0,
        le=1,
    )
    logp_mismatch_warning: float | None = setting(
        None,
        "Warn once when the log-probs of engine and learner differ by more than this, as a mean over a step's "
        "tokens; null: 0.001 when both compute in float32, 0.4 of an engine in int8, else 0.05.",
        affects=Affects.NOTHING,
        gt=0,
    )
    tensor_parallel_size: int = setting(
        1,
        "GPUs that a vLLM engine splits the model over; each actor needs as many (`num_gpus_per_env_runner`).",
        affects=Affects.NOTHING,
        ge=1,
    )
    gpu_memory_utilization: float | None = setting(
        None,
        "Share of a GPU's memory that a vLLM engine takes for weights and cache; null: 0.45 where a learner is on "
        "the same GPU, else vLLM's default.",
        affects=Affects.NOTHING,
        gt=0,
        le=1,
    )
    vllm: dict[str, Any] = setting(
        {},
        "Further arguments of `vllm.LLM`, which override all others: `{enforce_eager: true}`.",
        affects=Affects.ANSWERS | Affects.CODE,
    )

    @property
    def context_response(self) -> int:
        """The most tokens of a response that stand in one context, a carryover among them."""
        return -(-2 * self.max_response_tokens // (self.response_chunks + 1))


class LearnerSettings(Settings):
    """The learners: processes that hold the weights and train them."""

    num_learners: int = setting(
        0, "Learner actors; 0: one learner in the driver's process.", affects=Affects.LEARNERS, ge=0
    )
    token_budget: int = setting(
        16384,
        "Tokens in a micro-batch; a prompt that responses share counts once. A longer sequence gets its own "
        "micro-batch.",
        ge=1,
    )
    sharding: Literal["none", "fsdp"] = setting(
        "none",
        "`none`: every learner holds the whole model, gradient and moments. `fsdp`: each holds a part of them and "
        "gathers one layer at a time (FSDP2).",
        affects=Affects.LEARNERS,
    )
    offload: bool = setting(
        False,
        "Whether shards, their gradients and moments stay in the learners' CPU memory, where the optimizer steps; "
        "needs `sharding: fsdp`. Saves most of the GPU memory, at the cost of copies and a slower optimizer step.",
        affects=Affects.LEARNERS,
    )
    moments: Literal["float32", "8bit"] = setting(
        "float32",
        "AdamW's moments: `float32`, 8 bytes per parameter, or `8bit`, 2 bytes (needs bitsandbytes; "
        "docs/guides/large-models.md).",
        affects=Affects.LEARNERS,
        hparam=True,
    )
    weights: Literal["float32", "bfloat16"] = setting(
        "float32",
        "The weights that are trained: `float32`, or `bfloat16` halves of it that the model computes with, whose other "
        "halves only the optimizer reads; their gradients are bfloat16 too (docs/guides/large-models.md).",
        affects=Affects.LEARNERS,
        hparam=True,
    )
    packing: bool = setting(
        True,
        "Whether to pack a micro-batch's sequences without padding, where the model's attention allows it; false: "
        "rows side by side, padded to the longest.",
    )
    share_prompts: bool = setting(
        True,
        "Whether packed micro-batches hold a shared prompt once for all its responses, where the model's attention "
        "allows it; false: repeat the prompt with each response.",
    )
    float32_head: bool = setting(
        False,
        "Whether to multiply hidden states and output head in float32 where `rl_module.dtype` is bfloat16 "
        "(docs/reference/models.md).",
    )
    peak_tflops: float | None = setting(
        None,
        "Peak TFLOP/s of a learner's device, for the logged MFU; null: the known bfloat16 value for the device's "
        "name, and no MFU for an unknown device.",
        gt=0,
    )
    num_cpus_per_learner: float = setting(1.0, "CPUs that each learner reserves in Ray; may be a fraction.", ge=0)
    num_gpus_per_learner: float = setting(
        ByMachine(1.0, 0.0), "GPUs that each learner reserves in Ray; may be a fraction.", ge=0
    )
    num_threads: int | None = setting(None, "Torch threads of a learner; null: torch's default.", ge=1)
