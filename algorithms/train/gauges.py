"""The main metrics of a run as gauges of Ray: Prometheus scrapes them with Ray's own."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

# Tag → what the gauge says of itself.
WATCHED: Mapping[str, str] = MappingProxyType(
    {
        "step": "training steps done",
        "reward/mean": "mean reward of the fresh responses",
        "reward/correct": "share of fresh responses that are correct",
        "eval/pass@1": "pass@1 on held-out problems, at the last evaluation",
        "groups/zero_advantage": "share of responses with an advantage of 0",
        "groups/solve_all": "share of groups whose responses are all correct",
        "groups/solve_none": "share of groups whose responses are all incorrect",
        "response/mean_tokens": "mean length of the fresh responses, in tokens",
        "response/truncated": "share of fresh responses that were truncated at the length limit",
        "policy/loss": "loss",
        "policy/entropy": "mean entropy of the next token, in nats",
        "policy/kl": "KL from the initial model, in nats per token",
        "policy/grad_norm": "norm of the gradient before clipping",
        "policy/clip_fraction": "share of tokens whose gradient was clipped",
        "policy/logp_mismatch_mean": "mean difference between engine and learner log-probs, in nats",
        "policy/skipped_steps": "optimizer steps skipped in the last step",
        "grading/timeouts": "responses whose grading timed out in the last step",
        "grading/errors": "responses whose grading failed in the last step",
        "rollout/environment_errors": "episodes ended by an exception in the last step",
        "rollout/runner_restarts": "env runners lost and replaced in this run",
        "rollout/policy_lag": "steps between the oldest sampling policy and the trained one",
        "throughput/response_tokens_per_s": "fresh response tokens per second",
        "throughput/learner_tokens_per_s": "tokens per second that the learners process",
        "throughput/mfu": "share of the learners' peak FLOP/s that they reach",
        "throughput/idle_share": "share of time in which engines did not generate",
        "time/step": "seconds of the last step",
        "time/generate": "seconds of generation in the last step",
        "time/update": "seconds of optimizer steps in the last step",
        "time/transfer": "seconds of weight sync in the last step",
    }
)


class Gauges:
    """Gauges of one run, labeled with its name; none without Ray.

    Args:
        run: the run's name.
    """

    def __init__(self, run: str) -> None:
        self._labels = {"run": run}
        self._gauges: dict[str, Any] = {}

    def set(self, values: Mapping[str, float]) -> None:
        """Set the gauges of those metrics that are watched; Ray exports them after its next report, in seconds."""
        import ray

        if ray.is_initialized():
            for tag in WATCHED.keys() & values.keys():
                self._gauge(tag).set(values[tag], self._labels)

    def _gauge(self, tag: str) -> Any:
        from ray.util.metrics import Gauge

        if tag not in self._gauges:
            self._gauges[tag] = Gauge(gauge_name(tag), description=WATCHED[tag], tag_keys=("run",))
        return self._gauges[tag]


def gauge_name(tag: str) -> str:
    """Return a tag's gauge: `eval/pass@1` becomes `r3_grpo_eval_pass_at_1`, which Ray exports with `ray_` before it."""
    return "r3_grpo_" + re.sub(r"\W", "_", tag.replace("@", "_at_"))
