"""Settings of the loss that contradict each other. Imports no Ray."""

from algorithms.config.errors import ConfigError
from algorithms.config.machine import EnvRunnerSettings, LearnerSettings, RLModuleSettings
from algorithms.config.sections import EvaluationSettings, TrainingSettings

# Half of it is a carryover, of a beginning and an end.
SHORTEST_CHUNK = 8
# What vLLM makes room for: the next one that holds an adapter's rank.
VLLM_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


def check_loss(training: TrainingSettings) -> None:
    """Check the settings of section `training` that have a meaning only together.

    Raises:
        ConfigError: one line with the setting and the fix.
    """
    if training.kl_in == "reward" and not training.beta:
        raise ConfigError(
            "training.kl_in: reward has no effect with training.beta=0; fix: training.beta=0.01, or training.kl_in=loss"
        )
    if training.importance_mode == "mask" and training.importance_cap <= 1:
        raise ConfigError(
            f"training.importance_cap: with training.importance_mode=mask, {training.importance_cap:g} leaves out "
            "responses that engine and trainer agree on; fix: training.importance_cap=2"
        )
    if training.importance_floor > 0 and training.importance_mode != "mask":
        raise ConfigError(
            f"training.importance_floor: {training.importance_floor:g} has no effect with "
            f"training.importance_mode={training.importance_mode}; fix: training.importance_mode=mask"
        )


def check_schedule(training: TrainingSettings, steps: int | None) -> None:
    """Check that the schedule of the learning rate has a length, and that its settings act.

    Args:
        training: section `training`.
        steps: training steps that the schedule is made for; None: nobody said.

    Raises:
        ConfigError: one line with the setting and the fix.
    """
    schedule = training.lr_schedule
    acting = {"lr_min_share": training.lr_min_share, "lr_decay_steps": training.lr_decay_steps}
    for key, value in acting.items() if schedule == "constant" else ():
        if value:
            raise ConfigError(
                f"training.{key}: {value:g} has no effect with training.lr_schedule=constant; "
                "fix: training.lr_schedule=cosine"
            )
    if schedule != "constant" and steps is None:
        raise ConfigError(
            f"training.lr_schedule: {schedule} needs the number of training steps, which only the command knows from "
            "run.steps; fix: training.lr_decay_steps=100, or how many there will be"
        )


def check_chunks(runners: EnvRunnerSettings) -> None:
    """Check that a chunk has room behind its carryover, and that nothing else divides an episode into contexts.

    Raises:
        ConfigError: one line with the setting and the fix.
    """
    if runners.response_chunks > 1 and runners.context_response < SHORTEST_CHUNK:
        raise ConfigError(
            f"env_runners.response_chunks: {runners.response_chunks} cut {runners.max_response_tokens} tokens "
            f"(env_runners.max_response_tokens) into chunks of fewer than {SHORTEST_CHUNK}; fix: fewer chunks"
        )
    if runners.response_chunks > 1 and runners.max_context_tokens is not None:
        raise ConfigError(
            f"env_runners.max_context_tokens: {runners.max_context_tokens} is counted in whole responses, and "
            f"env_runners.response_chunks={runners.response_chunks} divides them; fix: env_runners.response_chunks=1"
        )


def check_greedy(evaluation: EvaluationSettings) -> None:
    """Check that a greedy evaluation takes one response per problem.

    Raises:
        ConfigError: one line with the setting and the fix.
    """
    if evaluation.temperature == 0 and (evaluation.samples > 1 or max(evaluation.k) > 1):
        raise ConfigError(
            "evaluation.temperature: 0 decodes greedily, and all responses to a problem are the same; fix: "
            "evaluation.samples=1 and evaluation.k=[1]"
        )


def check_policy_lag(training: TrainingSettings, env_runners: EnvRunnerSettings) -> None:
    """Check that rollouts can run ahead, and that the loss knows about it.

    Raises:
        ConfigError: one line with the setting and the fix.
    """
    if not training.max_off_policy_steps:
        return
    lag = f"training.max_off_policy_steps: {training.max_off_policy_steps}"
    if env_runners.num_env_runners == 0:
        raise ConfigError(
            f"{lag} needs remote env runners, which roll out while the learner works; fix: "
            "env_runners.num_env_runners=1, or training.max_off_policy_steps=0"
        )
    if training.importance_cap == 0:
        raise ConfigError(
            f"{lag} trains on rollouts of an older policy, which training.importance_cap=0 "
            "leaves uncorrected; fix: training.importance_cap=2"
        )
    if env_runners.sleep_while_training:
        raise ConfigError(
            f"{lag} keeps the engines running while the learners train, and env_runners.sleep_while_training stops "
            "them; fix: turn off one of them"
        )


def check_adapter(runners: EnvRunnerSettings, rl_module: RLModuleSettings) -> None:
    """Check that there is an adapter to send, and an engine that takes one.

    Raises:
        ConfigError: one line with the setting and the fix.
    """
    if runners.lora_weights == "adapter" and not rl_module.lora_rank:
        raise ConfigError(
            "env_runners.lora_weights: 'adapter' has no effect without one; fix: rl_module.lora_rank=16, or "
            "env_runners.lora_weights=merged"
        )
    if runners.lora_weights == "adapter" and (runners.engine != "vllm" or rl_module.lora_rank > VLLM_LORA_RANKS[-1]):
        raise ConfigError(
            f"env_runners.lora_weights: only vLLM takes an adapter alone, of rank {VLLM_LORA_RANKS[-1]} at most; fix: "
            "env_runners.lora_weights=merged"
        )
    if runners.lora_weights == "adapter" and rl_module.lora_base == "nf4":
        raise ConfigError(
            "env_runners.lora_weights: the engine's base is not in 4 bits, and rl_module.lora_base=nf4 trains beside "
            "one that is; fix: env_runners.lora_weights=merged"
        )


def check_learners(learners: LearnerSettings, rl_module: RLModuleSettings) -> None:
    """Check how learners hold the model.

    Raises:
        ConfigError: one line with the setting and the fix.
    """
    if learners.sharding == "fsdp" and learners.num_learners == 0:
        raise ConfigError(
            "learners.sharding: 'fsdp' shards over learner actors, and learners.num_learners is 0; "
            "fix: learners.num_learners=1, or more"
        )
    if learners.offload and learners.sharding != "fsdp":
        raise ConfigError(
            f"learners.offload: needs shards to offload, and learners.sharding is '{learners.sharding}'; "
            "fix: learners.sharding=fsdp"
        )
    for name, value in (("moments", "8bit"), ("weights", "bfloat16")):
        if getattr(learners, name) == value and learners.sharding == "fsdp":
            raise ConfigError(
                f"learners.{name}: {value!r} steps whole weights, and learners.sharding=fsdp splits them; "
                f"fix: learners.{name}=float32"
            )
    if rl_module.lora_base == "nf4":
        if not rl_module.lora_rank:
            raise ConfigError(
                "rl_module.lora_base: 'nf4' is for the weights under an adapter; fix: rl_module.lora_rank=16, or "
                "rl_module.lora_base=dtype"
            )
        if learners.sharding == "fsdp":
            raise ConfigError(
                "rl_module.lora_base: 'nf4' keeps whole layers, and learners.sharding=fsdp splits them; "
                "fix: rl_module.lora_base=dtype"
            )
    if learners.weights == "bfloat16" and (rl_module.lora_rank or rl_module.dtype == "float32"):
        why, fix = "computes in it, and rl_module.dtype is float32", "rl_module.dtype=bfloat16, or "
        if rl_module.lora_rank:
            why, fix = "is for weights that are trained, and rl_module.lora_rank trains an adapter beside them", ""
        raise ConfigError(f"learners.weights: 'bfloat16' {why}; fix: {fix}learners.weights=float32")
    if rl_module.lora_targets and not rl_module.lora_rank:
        raise ConfigError(
            "rl_module.lora_targets: has no effect without an adapter; fix: rl_module.lora_rank=16, or no targets"
        )


def check_second_tries(evaluation: EvaluationSettings, max_turns: int) -> None:
    """Check that a second attempt is possible: that nothing else follows the first answer.

    Raises:
        ConfigError: answers have several turns already.
    """
    if evaluation.reflection and max_turns > 1:
        raise ConfigError(
            f"evaluation.reflection: true with episodes of up to {max_turns} turns, which already have further "
            "attempts; fix: environment.max_turns=1 or evaluation.reflection=false"
        )
