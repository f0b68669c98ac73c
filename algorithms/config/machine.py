"""What runs where: the model, the inference engines and the learners. Imports no Ray."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from algorithms.config.schema import Affects, ByMachine, Settings, setting


class RLModuleSettings(Settings):
    """The causal language model that is trained."""

    AFFECTS: ClassVar[Affects] = Affects.ANSWERS

    model: Annotated[str, Field(min_length=1)] = setting(
        "embedded:tiny",
        "`embedded:tiny`, a folder in Hugging Face's format or a model's id on the Hub.",
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
        "Variables of the model's chat template: `{enable_thinking: false}`, in training and in evaluation.",
        affects=Affects.EVALUATION,
    )
    earlier_turns: Literal["sampled", "rendered"] = setting(
        "sampled",
        "What a later turn sees of the conversation: `sampled`, every token that was sampled, reasoning included; "
        "`rendered`, what the chat template makes of it anew, mostly without the reasoning of earlier turns "
        "(docs/guides/own-model.md).",
        affects=Affects.EVALUATION,
    )
    dtype: Literal["float32", "bfloat16"] = setting(
        ByMachine("bfloat16", "float32"),
        "Type that the learners compute in; master weights and moments are always float32.",
    )
    gradient_checkpointing: bool = setting(
        False, "Whether to recompute activations in the backward pass to save memory."
    )
    trust_remote_code: bool = setting(
        False, "Whether to run model code that comes with the model.", affects=Affects.ANSWERS | Affects.CODE
    )
    lora_rank: int = setting(
        0,
        "Rank of a low-rank adapter that is trained in the model's place (LoRA, needs peft); 0: train the model.",
        hparam=True,
        ge=0,
    )
    lora_alpha: float = setting(32.0, "The adapter's product is scaled by this over its rank.", gt=0)
    lora_targets: list[str] = setting(
        [], "Names of the layers that get an adapter: `[q_proj, v_proj]`; empty: all linear layers but the head."
    )


class EnvRunnerSettings(Settings):
    """The actors that hold an inference engine and run episodes with it."""

    AFFECTS: ClassVar[Affects] = Affects.ANSWERS

    engine: Literal["transformers", "vllm"] = setting(ByMachine("vllm", "transformers"), "Inference engine.")
    num_env_runners: int = setting(
        0, "Env runner actors; 0: one engine in the driver's process.", affects=Affects.NOTHING, ge=0
    )
    spares: int = setting(
        0,
        "Further actors with a started engine and the current weights, which only take the places of env runners that "
        "are lost; they reserve the same CPUs and GPUs.",
        affects=Affects.NOTHING,
        ge=0,
    )
    dtype: Literal["float32", "bfloat16"] = setting(
        ByMachine("bfloat16", "float32"), "Type of the engine's weights and cache."
    )
    max_response_tokens: int = setting(
        8192,
        "Length in tokens at which a response is cut off.",
        affects=Affects.EVALUATION,
        hparam=True,
        ge=1,
    )
    max_model_len: int | None = setting(
        None,
        "Tokens that the longest sequence of a vLLM engine may have; null: what prompts, responses, further turns and "
        "quoted attempts take, within the model's context.",
        affects=Affects.ANSWERS,
        ge=1,
    )
    temperature: float = setting(1.0, "Sampling temperature.", affects=Affects.EVALUATION, hparam=True, gt=0)
    top_p: float = setting(
        1.0,
        "Nucleus of sampling: the smallest set of tokens with this probability. Below 1 the engine draws from another "
        "distribution than the learner trains.",
        affects=Affects.EVALUATION,
        gt=0,
        le=1,
    )
    max_num_seqs: int = setting(
        128, "Responses that an engine generates at the same time.", affects=Affects.NOTHING, ge=1
    )
    num_cpus_per_env_runner: float = setting(
        1.0, "CPUs that each actor reserves in Ray; may be a fraction.", affects=Affects.NOTHING, ge=0
    )
    num_gpus_per_env_runner: float = setting(
        0.0, "GPUs that each actor reserves in Ray; may be a fraction.", affects=Affects.NOTHING, ge=0
    )
    num_threads: int | None = setting(
        None, "Torch threads of an engine; null: torch's own choice.", affects=Affects.NOTHING, ge=1
    )
    weight_transfer: Literal["auto", "object_store", "ipc", "nccl"] = setting(
        "auto",
        "How weights get from the learners to the engines: Ray's object store (works everywhere), CUDA IPC (engine and "
        "learner on one GPU) or NCCL (on different ones); `auto` takes the best for where they are "
        "(docs/guides/cluster.md).",
        affects=Affects.LEARNERS,
    )
    cache_in_flight: Literal["recompute", "keep"] = setting(
        "recompute",
        "What becomes of the cache of responses that run while weights change (`training.max_off_policy_steps` above "
        "0, vLLM): `recompute` it with the new weights, or `keep` what the old ones computed, which costs nothing and "
        "leaves log-probs that are of neither policy.",
        affects=Affects.LEARNERS,
    )
    sleep_while_training: bool | None = setting(
        None,
        "Whether vLLM engines give their GPU's memory back between rollouts; null: where a learner is on the same GPU "
        "and `training.max_off_policy_steps` is 0.",
        affects=Affects.LEARNERS,
    )
    timeout_s: float = setting(
        600.0, "Seconds without an answer after which an env runner counts as lost.", affects=Affects.NOTHING, gt=0
    )
    step_timeout_s: float = setting(
        1800.0,
        "Seconds that an environment may take to be made, for a reset or a step, waiting for graders included; its "
        "episode then fails, and that environment is not used again.",
        affects=Affects.NOTHING,
        gt=0,
    )
    logp_mismatch_warning: float | None = setting(
        None,
        "Warn once when the engine's log-probs differ from the learner's by more, in the mean over a step's tokens; "
        "null: 0.001 when both compute in float32, else 0.05.",
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
        "Part of a GPU's memory that a vLLM engine takes for weights and cache; null: 0.45 where a learner is on the "
        "same GPU, else vLLM's choice.",
        affects=Affects.NOTHING,
        gt=0,
        le=1,
    )
    vllm: dict[str, Any] = setting(
        {},
        "Further arguments of `vllm.LLM`, which go before all others: `{enforce_eager: true}`.",
        affects=Affects.ANSWERS | Affects.CODE,
    )


class LearnerSettings(Settings):
    """The processes that hold the weights and train them."""

    num_learners: int = setting(
        0, "Learner actors; 0: one learner in the driver's process.", affects=Affects.LEARNERS, ge=0
    )
    token_budget: int = setting(
        16384,
        "Tokens in a micro-batch, where a prompt that responses share counts once; a sequence that is longer makes a "
        "micro-batch of its own.",
        ge=1,
    )
    sharding: Literal["none", "fsdp"] = setting(
        "none",
        "`none`: every learner holds the whole model, its gradient and its moments; `fsdp`: each holds a part of them "
        "and gathers a layer at a time (FSDP2).",
        affects=Affects.LEARNERS,
    )
    offload: bool = setting(
        False,
        "Whether shards, their gradients and the moments stay in the learners' CPU memory, where the optimizer steps; "
        "needs `sharding: fsdp`. Saves most of the GPU's memory and costs the copies and a slower step.",
        affects=Affects.LEARNERS,
    )
    packing: bool = setting(
        True,
        "Whether micro-batches are sequences one after another without padding, where the model's attention allows "
        "it; false: rows side by side, padded to the longest.",
    )
    share_prompts: bool = setting(
        True,
        "Whether packed micro-batches hold a prompt once for all its responses, where the model's attention allows it; "
        "false: each response comes with its prompt.",
    )
    peak_tflops: float | None = setting(
        None,
        "Peak TFLOP/s of a learner's device, which the logged MFU is a share of; null: that of the device's name in "
        "bfloat16, and no MFU where it is not known.",
        gt=0,
    )
    num_cpus_per_learner: float = setting(1.0, "CPUs that each actor reserves in Ray; may be a fraction.", ge=0)
    num_gpus_per_learner: float = setting(
        ByMachine(1.0, 0.0), "GPUs that each actor reserves in Ray; may be a fraction.", ge=0
    )
    num_threads: int | None = setting(None, "Torch threads of a learner; null: torch's own choice.", ge=1)
