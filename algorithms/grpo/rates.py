"""How fast a step was, and where its time went. Pure functions."""

from collections.abc import Mapping, Sequence

from algorithms.learner.hardware import LearnerFacts, model_flops_utilization, peak_flops
from algorithms.learner.update import UpdateStatistics

# The stages whose time a part of the split is; what they leave of the step is bookkeeping.
STAGES = {"time/statistics": "time/score_tokens", "time/update": "time/update_policy"}


def learner_rates(
    steps: Sequence[UpdateStatistics], facts: LearnerFacts, learners: int, peak_tflops: float | None
) -> dict[str, float]:
    """What the optimizer steps of one training step got through, as the learners themselves timed them.

    Args:
        steps: what each of them did, over all learners.
        facts: of one learner.
        learners: how many work at the same time.
        peak_tflops: of one learner's device; None: by its name.

    Returns:
        `throughput/learner_tokens_per_s` (prompts included), `throughput/padding_share` (of the token slots of the
        micro-batches) and, where the device's peak is known, `throughput/mfu`. Nothing without a step.
    """
    seconds = sum(step.seconds for step in steps)
    tokens, slots = sum(step.passed_tokens for step in steps), sum(step.slots for step in steps)
    if seconds <= 0 or slots <= 0:
        return {}
    peak = peak_tflops * 1e12 if peak_tflops else peak_flops(facts.device, facts.dtype)
    mfu = model_flops_utilization(sum(step.flops for step in steps), seconds, learners, peak)
    return {
        "throughput/learner_tokens_per_s": tokens / seconds,
        "throughput/padding_share": 1.0 - tokens / slots,
        **({} if mfu is None else {"throughput/mfu": mfu}),
    }


def rollout_times(*, play_s: float, engine_s: float, runner_s: float) -> dict[str, float]:
    """Split the time in which rollouts were played.

    Args:
        play_s: wall time.
        engine_s: in which an engine generated, added up over the runners.
        runner_s: wall time, added up over the runners.

    Returns:
        `time/generate`, a runner's mean; `time/grade`, what is left: environments and graders as far as generation
        does not hide them, and runners that wait for the last one.
    """
    generate = play_s * min(1.0, engine_s / runner_s) if runner_s > 0 else 0.0
    return {"time/generate": generate, "time/grade": play_s - generate}


def time_split(record: Mapping[str, float]) -> dict[str, float]:
    """`time/statistics` and `time/update` from the times of the stages that do them."""
    return {tag: record[stage] for tag, stage in STAGES.items() if stage in record}
