"""The tags that a step's row will have: a list beside docs/reference/metrics.md, for settings that name a metric."""

from algorithms.grpo.config import GRPOConfig
from algorithms.grpo.registry import BUILT_IN, named_mechanisms, query_sampler

# Numbers of every step but those of methods, which have `tags` of their own. Some are there only where a setting or a
# device asks for them.
COMMON = """
reward/mean reward/correct reward/training_mean
groups/count groups/solve_all groups/solve_none groups/zero_advantage
sampling/refills sampling/dropped_groups
response/mean_tokens response/max_tokens response/further_contexts response/truncated response/no_answer
grading/no_answer grading/ungraded grading/timeouts grading/errors grading/screened grading/unread grading/restarts
tools/calls tools/used tools/failed
policy/loss policy/entropy policy/kl policy/grad_norm policy/clip_fraction policy/is_bounded policy/logp_mismatch_mean
policy/logp_mismatch_max policy/lr policy/skipped_steps policy/trained_tokens
replay/clip_fraction replay/ratio_max replay/stored replay/damaged
rollout/prompts_expected rollout/prompts_completed rollout/failed_share rollout/environment_errors
rollout/changed_prefixes rollout/runner_restarts rollout/runner_recovery_s rollout/hung rollout/requeued rollout/stolen
rollout/stale rollout/policy_lag rollout/policy_lag_mean rollout/mixed_policies
throughput/response_tokens_per_s throughput/samples_per_s throughput/learner_tokens_per_s throughput/mfu
throughput/padding_share throughput/idle_share throughput/generated_tokens
time/step time/cpu time/generate time/grade time/statistics time/update time/transfer time/collect_rollouts
time/sleep_engines time/score_tokens time/shape_rewards time/compose_groups time/compute_advantages time/update_policy
time/update_history time/sync_weights
run/wall_s run/epoch
eval/mean_tokens eval/truncated eval/no_answer eval/reward eval/distinct eval/failed_share eval/problems eval/samples
""".split()


def known_tags(config: GRPOConfig) -> list[str]:
    """Return the tags of the numbers that a run measures, those of its methods and evaluations included.

    Means of reward functions, `reward/function/NAME`, are not among them: the environment names these.
    """
    training, evaluation = config.training_settings, config.evaluation_settings
    kinds = (*BUILT_IN, *config.MECHANISMS, *named_mechanisms(training, config.MECHANISMS), query_sampler(training))
    of_methods = [tag for kind in kinds for tag in kind.tags]
    of_k = [f"eval/pass@{k}" for k in evaluation.k]
    reflected = ["eval/pass@1_after_reflection"] if evaluation.reflection else []
    return [*COMMON, *of_methods, *of_k, *reflected]
