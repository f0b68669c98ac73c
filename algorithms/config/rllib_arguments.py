"""What RLlib's own settings do here: each has its effect, or is refused with the setting that has it.

Fluent methods, dicts, Tune's `param_space` and attributes set by hand all end as attributes of the configuration. So
attributes are compared with those of an untouched configuration, and what differs has to be in `EFFECTIVE`. Both tables
name every attribute that Ray's `AlgorithmConfig` has; a test notices one that a new Ray adds.
"""

import functools
import inspect
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core import DEFAULT_MODULE_ID

from algorithms.config.errors import ConfigError, close_match
from algorithms.config.other_libraries import explain_other_name

# Those that are called, in env runners and in the driver.
RUNNER_CALLBACKS = frozenset(
    """
    on_environment_created on_episode_created on_episode_start on_episode_step on_episode_end on_sample_end
    """.split()
)
CALLBACKS = RUNNER_CALLBACKS | {
    "on_algorithm_init",
    "on_checkpoint_loaded",
    "on_evaluate_end",
    "on_evaluate_start",
    "on_train_result",
}

# Read by the parts of RLlib that run here, by ours, or by a class of the user's own.
EFFECTIVE = frozenset(
    """
    algo_class callbacks_class create_local_env_runner custom_evaluation_function custom_resources_for_main_process
    custom_resources_per_env_runner custom_resources_per_learner env env_config
    env_runner_cls evaluation_config evaluation_duration evaluation_interval
    grad_clip in_evaluation _is_frozen _is_online _learner_class
    learner_config_dict local_gpu_idx log_level log_sys_usage lr max_num_env_runner_restarts
    metrics_num_episodes_for_smoothing min_sample_timesteps_per_iteration min_time_s_per_iteration
    min_train_timesteps_per_iteration _model_config
    num_cpus_for_main_process num_cpus_per_env_runner num_cpus_per_learner num_env_runners num_epochs
    num_gpus_per_env_runner num_gpus_per_learner num_learners _per_module_overrides placement_strategy
    _prior_exploration_config restart_failed_env_runners _rl_module_spec sample_timeout_s seed simple_optimizer
    stats_cls_lookup _validate_config validate_env_runners_after_construction
    """.split()
) | {f"callbacks_{name}" for name in CALLBACKS}

_FORMER = "RLlib's former API stack, and older names, are not there"
_TEXT = "episodes are conversations, which the engine renders and tokenizes"
_ONE = "there is one agent and one policy"
_OFFLINE = "RLlib's offline data is not read"
_ACTORS = "runners are watched, restarted and sent weights without RLlib's states and probes"
_TORCH = "models run in PyTorch, compiled by the engine alone"

# What to say, and of which attributes.
_REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "fix: training.queries_per_step and training.group_size, whose product is the batch": """
            train_batch_size _train_batch_size_per_learner rollout_fragment_length batch_mode
            timesteps_per_iteration""",
        "fix: training.minibatches, the number of parts that a batch is split into": "minibatch_size",
        "mini-batches are shuffled in each pass": "shuffle_batch_per_epoch",
        "fix: env_runners.max_failed_share, and run.restarts": "num_consecutive_env_runner_failures_tolerance",
        "an episode's reward counts whole": "gamma clip_rewards",
        "gradients are clipped by their global norm": "grad_clip_by",
        "fix: training.lr_schedule": "_torch_lr_scheduler_classes",
        "fix: training.max_skipped_steps": "torch_skip_nan_gradients",
        "fix: rl_module.dtype": "_torch_grad_scaler_class",
        "fix: rl_module.model": "model",
        "fix: training.lr; the optimizer is AdamW": "optimizer algorithm_config_overrides_per_module",
        "fix: metrics policy/grad_norm and the like are always there": "log_gradients",
        "fix: env_runners.max_num_seqs, the number of episodes that an engine decodes at once": """
            num_envs_per_env_runner gym_env_vectorize_mode remote_worker_envs remote_env_batch_wait_ms""",
        "fix: env_runners.temperature": "explore exploration_config",
        "fix: env_runners.timeout_s": """
            env_runner_health_probe_timeout_s env_runner_restore_timeout_s evaluation_sample_timeout_s
            evaluation_unhealthy_workers_timeout_s""",
        "fix: evaluation_duration, in episodes, or evaluation.limit and evaluation.samples": """
            evaluation_duration_unit evaluation_auto_duration_min_env_steps_per_sample
            evaluation_auto_duration_max_env_steps_per_sample evaluation_num_episodes""",
        "the training runners evaluate, between two steps": """
            evaluation_num_env_runners evaluation_parallel_to_training evaluation_force_reset_envs_before_iteration
            evaluation_error_after_n_consecutive_skips always_attach_evaluation_results enable_async_evaluation""",
        "fix: override `evaluate` in a class of your own": """
            custom_async_evaluation_function off_policy_estimation_methods
            ope_split_batch_by_episode""",
        "fix: learners.num_gpus_per_learner and env_runners.num_gpus_per_env_runner": "num_gpus _fake_gpus",
        "fix: the runtime environment of `ray.init` or `ray job submit`": """
            extra_python_environs_for_driver extra_python_environs_for_worker""",
        "fix: `algorithms.export`, which writes the policy as a model of the Hub's format": """
            export_native_model_files checkpoint_trainable_policies_only""",
        "learners get the driver's rows directly": """
            num_aggregator_actors_per_learner max_requests_in_flight_per_aggregator_actor
            max_requests_in_flight_per_learner _learner_connector add_default_connectors_to_learner_pipeline""",
        _TEXT: """
            disable_env_checking observation_space action_space normalize_actions clip_actions _is_atari render_env
            action_mask_key
            create_env_on_local_worker episodes_to_numpy episode_lookback_horizon compress_observations
            _env_to_module_connector add_default_connectors_to_env_to_module_pipeline _module_to_env_connector
            add_default_connectors_to_module_to_env_pipeline env_task_fn fake_sampler
            restart_failed_sub_environments""",
        _ACTORS: """
            merge_env_runner_states broadcast_env_runner_states use_env_runner_state_server
            env_runner_state_server_max_concurrency max_requests_in_flight_per_env_runner ignore_env_runner_failures
            delay_between_env_runner_restarts_s _dont_auto_sync_env_runner_states
            callbacks_on_env_runners_recreated""",
        _TORCH: """
            framework_str eager_tracing eager_max_retraces tf_session_args local_tf_session_args torch_compile_learner
            torch_compile_learner_what_to_compile torch_compile_learner_dynamo_backend torch_compile_learner_dynamo_mode
            torch_compile_worker torch_compile_worker_dynamo_backend torch_compile_worker_dynamo_mode torch_ddp_kwargs
            enable_tf1_exec_eagerly""",
        _ONE: """
            count_steps_by policies policy_map_capacity policy_mapping_fn policies_to_train
            policy_states_are_swappable observation_fn
            policy_map_cache""",
        _OFFLINE: """
            input_ offline_data_class input_read_method input_read_method_kwargs input_read_schema input_read_episodes
            input_read_sample_batches input_read_batch_size input_filesystem input_filesystem_kwargs
            input_compress_columns input_spaces_jsonable materialize_data materialize_mapped_data map_batches_kwargs
            iter_batches_kwargs ignore_final_observation prelearner_class prelearner_buffer_class
            prelearner_buffer_kwargs prelearner_module_synch_period prelearner_use_recorded_module_states
            dataset_num_iters_per_learner input_config actions_in_input_normalized postprocess_inputs
            shuffle_buffer_size output output_config output_compress_columns output_max_file_size
            output_max_rows_per_file output_write_remaining_data output_write_method output_write_method_kwargs
            output_filesystem output_filesystem_kwargs output_write_episodes offline_sampling
            offline_evaluation_interval num_offline_eval_runners offline_evaluation_type offline_eval_runner_class
            offline_loss_for_module_fn offline_evaluation_duration offline_evaluation_parallel_to_training
            offline_evaluation_timeout_s num_cpus_per_offline_eval_runner num_gpus_per_offline_eval_runner
            custom_resources_per_offline_eval_runner restart_failed_offline_eval_runners
            ignore_offline_eval_runner_failures max_num_offline_eval_runner_restarts
            offline_eval_runner_restore_timeout_s max_requests_in_flight_per_offline_eval_runner
            validate_offline_eval_runners_after_construction offline_eval_runner_health_probe_timeout_s
            offline_eval_rl_module_inference_only broadcast_offline_eval_runner_states
            offline_eval_batch_size_per_runner dataset_num_iters_per_eval_runner
            callbacks_on_offline_eval_runners_recreated callbacks_on_evaluate_offline_start
            callbacks_on_evaluate_offline_end""",
        "fix: metrics.jsonl, which has a row per step": """
            keep_per_episode_custom_metrics metrics_episode_collection_timeout_s""",
        _FORMER: """
            enable_rl_module_and_learner enable_env_runner_and_connector_v2 sample_collector preprocessor_pref
            observation_filter
            update_worker_filter_stats use_worker_filter_stats sampler_perf_stats_ema_coef
            sync_filters_on_rollout_workers_timeout_s _use_msgpack_checkpoints
            _tf_policy_handles_more_than_one_loss _disable_preprocessor_api _disable_action_flattening
            _disable_initialize_loss_from_dummy_batch enable_connectors monitor metrics_smoothing_episodes
            min_iter_time_s collect_metrics_timeout min_time_s_per_reporting min_train_timesteps_per_reporting
            min_sample_timesteps_per_reporting input_evaluation worker_cls synchronize_filters _enable_rl_module_api
            auto_wrap_old_gym_envs buffer_size prioritized_replay learning_starts replay_batch_size
            replay_sequence_length replay_mode prioritized_replay_alpha prioritized_replay_beta prioritized_replay_eps
            _disable_execution_plan_api""",
    }
)
REFUSED: Mapping[str, str] = MappingProxyType(
    {name: answer for answer, names in _REFUSED.items() for name in names.split()}
)


def argument_of(attribute: str) -> str:
    """Return the argument of RLlib's fluent methods that sets this attribute."""
    methods = [function for _, function in inspect.getmembers(AlgorithmConfig, inspect.isfunction)]
    arguments = {name for function in methods for name in inspect.signature(function).parameters}
    bare = attribute.removeprefix("callbacks_").removesuffix("_str").lstrip("_")
    return attribute if attribute in arguments or bare not in arguments else bare


def check_arguments(config: AlgorithmConfig, untouched: AlgorithmConfig, sections: Mapping[str, Iterable[str]]) -> None:
    """Refuse what has no effect.

    Args:
        config: to check.
        untouched: another of its class, with its defaults.
        sections: its own settings, by section.

    Raises:
        ConfigError: one line that names the first such argument, and what to write for it.
    """
    own, before = vars(config), vars(untouched)
    for name, value in own.items():
        if name in before and (name in EFFECTIVE or name not in REFUSED or _same(value, before[name])):
            continue  # what is in neither table belongs to a class of the user's own
        if name not in before and (_is_rllibs(name) or name.removesuffix("_settings") in sections):
            continue
        if name not in REFUSED and hasattr(type(config), name):  # of a class of the user's own
            continue
        raise ConfigError(f"{argument_of(name)}: has no effect here; {_answer(name, sections)}")
    check_callbacks(_classes(config.callbacks_class))


def check_callbacks(kinds: Iterable[type]) -> None:
    """Refuse callbacks that are never called; what a function makes is known only when it is made.

    Args:
        kinds: classes of callbacks.

    Raises:
        ConfigError: one line that names the first such method, and the methods that are called.
    """
    for kind in kinds:
        for place in _places(kind):
            if place not in CALLBACKS:
                known = ", ".join(sorted(CALLBACKS))
                raise ConfigError(f"{kind.__name__}.{place}: is never called here; known: {known}")


def check_model_config(config: AlgorithmConfig) -> None:
    """Refuse settings that RLlib would give to a network of its own.

    Raises:
        ConfigError: one line that names the first such setting.
    """
    spec: Any = getattr(config._rl_module_spec, "rl_module_specs", config._rl_module_spec)
    spec = spec.get(DEFAULT_MODULE_ID) if isinstance(spec, Mapping) else spec
    if getattr(spec, "module_class", None) is not None:  # of the user's own
        return
    for given in (config._model_config, getattr(spec, "model_config", None)):
        if given:
            name = next(iter(given)) if isinstance(given, Mapping) else type(given).__name__
            fix = "rl_module.model, which names the policy, or a setting of section rl_module"
            raise ConfigError(f"model_config: {name} has no effect here; fix: {fix}")


def given_callbacks(config: AlgorithmConfig, made: Iterable[RLlibCallback]) -> set[str]:
    """Return the places of a configuration's callbacks: as functions, and as methods of what its classes have made."""
    methods = {place for each in made for place in _places(type(each))}
    return methods | {place for place in CALLBACKS if getattr(config, f"callbacks_{place}")}


def _is_rllibs(name: str) -> bool:
    """Whether RLlib itself adds this attribute: Tune's notes of a trial, a restored state's class."""
    return name == "class" or (name.startswith("__") and name.endswith("__"))


def _answer(name: str, sections: Mapping[str, Iterable[str]]) -> str:
    if known := REFUSED.get(name):
        return known if known.startswith("fix: ") else f"{known}; fix: leave it out"
    if owners := [f"{section}.{name}" for section, keys in sections.items() if name in keys]:
        return f"fix: {' or '.join(owners[:3])}"
    close = close_match(name, [key for keys in sections.values() for key in keys])
    return explain_other_name(name) or (f"did you mean {close}?" if close else "neither RLlib nor a section has it")


def _same(one: Any, other: Any) -> bool:
    """Whether two values are the same, also after they went through RLlib's dicts."""
    if one is other or one == "__not_serializable__":
        return True
    try:
        return bool(one == other)
    except Exception:  # RLlib's specifications of policies compare with their like alone
        return isinstance(one, Mapping) and isinstance(other, Mapping) and one.keys() == other.keys()


def _classes(given: Any) -> list[type]:
    each = given if isinstance(given, list | tuple) else [given]
    classes = [kind.func if isinstance(kind, functools.partial) else kind for kind in each]
    return [kind for kind in classes if isinstance(kind, type)]


def _places(kind: type) -> Iterator[str]:
    for name in dir(RLlibCallback):
        if name.startswith("on_") and getattr(kind, name, None) not in (None, getattr(RLlibCallback, name)):
            yield name
