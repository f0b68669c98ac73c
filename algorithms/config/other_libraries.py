"""TRL's and verl's names of our settings, and those of RLlib's other algorithms, for the error of whoever types one.

A test compares the former with the tables of docs/guides/coming-from-trl-or-verl.md.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

_PAGE = "docs/guides/coming-from-trl-or-verl.md"
_MOST_NAMED = 4
_VERL_SECTIONS = frozenset({"actor_rollout_ref", "critic", "reward_model", "trainer", "custom_reward_function"})
# Ours, and theirs that it stands for.
_TRL = {
    "training.group_size": "num_generations",
    "training.queries_per_step": "generation_batch_size",
    "training.minibatches": "steps_per_generation",
    "training.passes": "num_iterations",
    "training.clip_low": "epsilon",
    "training.clip_high": "epsilon_high",
    "training.dual_clip": "delta",
    "training.loss_aggregation": "loss_type",
    "training.advantage": "scale_rewards",
    "training.mechanisms": "multi_objective_aggregation",
    "training.ratio_level": "importance_sampling_level",
    "training.mask_truncated": "mask_truncated_completions",
    "training.lr": "learning_rate",
    "training.lr_schedule": "lr_scheduler_type",
    "training.lr_min_share": "lr_scheduler_kwargs",
    "training.grad_clip": "max_grad_norm",
    "training.importance_cap": "vllm_importance_sampling_correction vllm_importance_sampling_clip_max "
    "vllm_importance_sampling_cap",
    "training.importance_level": "vllm_importance_sampling_mode",
    "training.importance_floor": "vllm_importance_sampling_clip_min",
    "training.max_off_policy_steps": "max_staleness",
    "learners.token_budget": "per_device_train_batch_size gradient_accumulation_steps",
    "env_runners.max_response_tokens": "max_completion_length",
    "env_runners.engine": "use_vllm use_transformers_continuous_batching use_transformers_paged",
    "env_runners.num_env_runners": "vllm_mode",
    "env_runners.gpu_memory_utilization": "vllm_gpu_memory_utilization",
    "env_runners.tensor_parallel_size": "vllm_tensor_parallel_size",
    "env_runners.max_model_len": "vllm_max_model_length",
    "env_runners.sleep_while_training": "vllm_enable_sleep_mode",
    "environment.data": "train_dataset",
    "environment.options.max_prompt_length": "max_prompt_length",
    "environment.options.reward": "reward_funcs",
    "environment.options.weights": "reward_weights",
    "environment.id": "environment_factory",
    "environment.options.tools": "tools",
    "environment.max_turns": "max_tool_calling_iterations",
    "evaluation.data": "eval_dataset",
    "evaluation.interval": "eval_steps",
    "evaluation.samples": "num_generations_eval",
    "entropy_bonus.coefficient": "entropy_coef",
    "entropy_bonus.target": "entropy_target use_adaptive_entropy",
    "entropy_bonus.step": "entropy_coef_delta",
    "entropy_bonus.most": "entropy_coef_max",
    "sapo.tau_positive": "sapo_temperature_pos",
    "sapo.tau_negative": "sapo_temperature_neg",
    "learners.sharding": "deepspeed fsdp",
    "rl_module.dtype": "bf16",
    "rl_module.lora_rank": "peft_config",
    "rl_module.revision": "model_init_kwargs",
    "run.steps": "max_steps num_train_epochs",
    "run.dir": "output_dir",
    "run.checkpoint_every": "save_steps",
    "run.keep_checkpoints": "save_total_limit",
    "run.trackers": "report_to",
    "run.log_conversations": "log_completions num_completions_to_print",
    "run.name": "run_name",
}
# Without `actor_rollout_ref.` in front.
_VERL = {
    "training.advantage": "algorithm.adv_estimator algorithm.norm_adv_by_std_in_grpo",
    "training.queries_per_step": "data.train_batch_size",
    "training.group_size": "rollout.n",
    "training.minibatches": "actor.ppo_mini_batch_size",
    "training.passes": "actor.ppo_epochs",
    "training.clip_low": "actor.clip_ratio_low",
    "training.clip_high": "actor.clip_ratio_high",
    "training.dual_clip": "actor.clip_ratio_c",
    "training.loss_aggregation": "actor.loss_agg_mode",
    "training.objective": "actor.policy_loss.loss_mode",
    "training.beta": "actor.use_kl_loss actor.kl_loss_coef algorithm.kl_ctrl.kl_coef",
    "training.kl_estimator": "actor.kl_loss_type",
    "training.kl_in": "algorithm.use_kl_in_reward",
    "training.importance_level": "algorithm.rollout_correction.rollout_is",
    "training.importance_cap": "algorithm.rollout_correction.rollout_is_threshold",
    "training.importance_mode": "algorithm.rollout_correction.rollout_rs",
    "training.max_off_policy_steps": "trainer.v1.trainer_mode trainer.v1.sampler.max_off_policy_threshold",
    "training.max_resample_rounds": "algorithm.filter_groups.enable algorithm.filter_groups.max_num_gen_batches",
    "training.lr": "actor.optim.lr",
    "training.warmup_steps": "actor.optim.lr_warmup_steps",
    "training.lr_schedule": "actor.optim.lr_scheduler_type",
    "training.lr_min_share": "actor.optim.min_lr_ratio",
    "training.lr_decay_steps": "actor.optim.total_training_steps",
    "training.weight_decay": "actor.optim.weight_decay",
    "training.grad_clip": "actor.grad_clip",
    "learners.token_budget": "actor.ppo_max_token_len_per_gpu actor.ppo_micro_batch_size_per_gpu",
    "learners.packing": "model.use_remove_padding",
    "learners.sharding": "actor.strategy",
    "learners.offload": "actor.fsdp_config.param_offload actor.fsdp_config.optimizer_offload",
    "env_runners.num_env_runners": "trainer.n_gpus_per_node trainer.nnodes",
    "env_runners.vllm": "rollout.enforce_eager rollout.engine_kwargs",
    "env_runners.max_response_tokens": "data.max_response_length",
    "env_runners.engine": "rollout.name",
    "env_runners.tensor_parallel_size": "rollout.tensor_model_parallel_size",
    "env_runners.gpu_memory_utilization": "rollout.gpu_memory_utilization",
    "env_runners.max_model_len": "rollout.max_model_len",
    "env_runners.max_num_seqs": "rollout.max_num_seqs",
    "env_runners.sleep_while_training": "rollout.free_cache_engine",
    "env_runners.temperature": "rollout.temperature",
    "environment.data": "data.train_files",
    "environment.columns": "data.prompt_key",
    "environment.options.max_prompt_length": "data.max_prompt_length data.filter_overlong_prompts",
    "environment.options.reward": "reward.custom_reward_function.path reward.custom_reward_function.name",
    "environment.max_turns": "rollout.multi_turn.max_assistant_turns",
    "evaluation.data": "data.val_files",
    "evaluation.samples": "rollout.val_kwargs.n",
    "evaluation.temperature": "rollout.val_kwargs.temperature rollout.val_kwargs.do_sample",
    "evaluation.top_p": "rollout.top_p rollout.val_kwargs.top_p",
    "evaluation.top_k": "rollout.top_k rollout.val_kwargs.top_k",
    "evaluation.interval": "trainer.test_freq trainer.val_before_train",
    "entropy_bonus.coefficient": "actor.entropy_coeff",
    "reward.overlong_penalty": "reward.reward_kwargs.overlong_buffer_cfg",
    "rl_module.model": "model.path",
    "rl_module.gradient_checkpointing": "model.enable_gradient_checkpointing",
    "rl_module.lora_rank": "model.lora_rank",
    "rl_module.lora_alpha": "model.lora_alpha",
    "rl_module.lora_targets": "model.target_modules",
    "run.steps": "trainer.total_training_steps trainer.total_epochs",
    "run.checkpoint_every": "trainer.save_freq",
    "run.keep_checkpoints": "trainer.max_actor_ckpt_to_keep",
    "run.trackers": "trainer.logger",
    "run.name": "trainer.project_name trainer.experiment_name",
    "run.save_rollouts": "trainer.rollout_data_dir",
}


def _by_theirs(names: Mapping[str, str]) -> Mapping[str, str]:
    return MappingProxyType({one: ours for ours, theirs in names.items() for one in theirs.split()})


OTHER_NAMES: Mapping[str, Mapping[str, str]] = MappingProxyType({"TRL": _by_theirs(_TRL), "verl": _by_theirs(_VERL)})


# Arguments of PPO and its like in RLlib, which `AlgorithmConfig` does not have.
_OF_PPO: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("clip_param", "vf_clip_param"), "fix: training.clip_low and training.clip_high"),
        **dict.fromkeys(
            ("kl_coeff", "use_kl_loss", "kl_target"),
            "no penalty here adapts; fix: training.mechanisms=[mdpo] for one against the policy that sampled, or "
            "training.beta for one against the first model",
        ),
        "entropy_coeff_schedule": "fix: training.mechanisms=[entropy_bonus], entropy_bonus.target=null and "
        "entropy_bonus.coefficient, a constant",
        "num_sgd_iter": "fix: training.passes",
        "sgd_minibatch_size": "fix: training.minibatches",
        **dict.fromkeys(
            ("lambda_", "use_gae", "use_critic", "vf_loss_coeff", "vf_share_layers"),
            "there is no value function: a group's rewards are the baseline; fix: leave it out",
        ),
    }
)


def explain_other_name(written: str) -> str | None:
    """Return the end of an error line for another library's name of a setting; None where it is none.

    Args:
        written: a dotted name, as in an override; TRL's names, and the last parts of verl's, may have any section in
            front. Parts of one word, such as `n` and `enable`, are no one's in particular.
    """
    if found := _find(written):
        return f"{found.theirs} is {found.library}'s name; fix: write {found.ours}, see {_PAGE}"
    return _OF_PPO.get(written.rpartition(".")[2])


def explain_other_sections(sections: Mapping[str, object]) -> str | None:
    """Return the end of an error line for sections of a file that hold another library's settings; None if none do.

    Args:
        sections: of the file, as deep as they are.
    """
    found = list(dict.fromkeys(one for name in _leaves(sections) if (one := _find(name))))
    if not found:
        library = "verl" if sections.keys() & _VERL_SECTIONS else None
        return library and f"it is {library}'s; fix: look its settings up in {_PAGE}"
    pairs = ", ".join(f"{one.ours} for {one.theirs}" for one in found[:_MOST_NAMED])
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return f"its settings are {found[0].library}'s; fix: write {pairs}{more}, see {_PAGE}"


class _Found(NamedTuple):
    """Another library's name, and the setting of ours that it stands for."""

    library: str
    theirs: str
    ours: str


def _find(written: str) -> _Found | None:
    name = written.lstrip("+").removeprefix("actor_rollout_ref.")
    last = name.rpartition(".")[2]
    for library, names in OTHER_NAMES.items():
        ends = [key for key in names if last == key or (last == key.rpartition(".")[2] and "_" in last)]
        theirs = [name] if name in names else ends
        ours = {names[key] for key in theirs}
        if len(ours) == 1:
            return _Found(library, theirs[0], ours.pop())
    return None


def _leaves(values: Mapping[str, object], prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of a nested mapping, those of mappings included: some stand for a setting of ours."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        yield name
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{name}.")
