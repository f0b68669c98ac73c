"""Measure a model on the held-out problems, as training does before and after."""

from typing import Any

from algorithms.evaluation.sampling import (
    evaluate_policy,
    held_out_sample,
    make_truncator,
    training_sampling,
)
from algorithms.models.names import context_length, resolve_model
from algorithms.models.tokenizer import load_tokenizer
from algorithms.preflight.ray_session import start_ray
from algorithms.rollout.env_runner import environment_makers
from algorithms.rollout.types import Split
from algorithms.rollout.workers import inference_workers
from algorithms.sft.config import SFTConfig
from algorithms.train.closing_table import problems_named
from algorithms.utils.progress import Counter


def measure(config: SFTConfig, side: str, step: int, seed: int) -> dict[str, Any]:
    """Sample answers to the held-out problems, and return what evaluation.json keeps of them.

    Args:
        config: names the model.
        side: `before` or `after`.
        step: of the model.
        seed: of the run.
    """
    settings, module = config.evaluation_settings, config.rl_module_settings
    with environment_makers(config)[Split.EVALUATION]() as environment:
        queries: Any = environment.unwrapped
        uids = list(queries.uids)
        tokenizer = load_tokenizer(resolve_model(module.model), module.revision, module.trust_remote_code)
        truncator = make_truncator(config, tokenizer, environment, context_length(module))
        count = len(held_out_sample(uids, settings.limit))
        title = (
            f"evaluating {side} training: {count} {problems_named(settings.data)} problems × {settings.samples} answers"
        )
        with inference_workers(config, start_ray) as workers, Counter(title) as counter:
            evaluation = evaluate_policy(
                lambda requests: workers.rollout(requests, counter.update),
                uids,
                settings,
                training_sampling(config.env_runners_settings),
                seed,
                truncator,
            )
        return {
            "step": step,
            "metrics": evaluation.metrics(),
            "correct": evaluation.share_correct(),
            "levels": {uid: level for uid in evaluation.uids if (level := queries.query(uid).level)},
        }


def of_model(config: SFTConfig, folder: str) -> SFTConfig:
    """Return the configuration with another model, a folder of whole weights."""
    copy: SFTConfig = config.copy(copy_frozen=False)
    changes: dict[str, Any] = {"model": folder, "revision": None, "lora_rank": 0, "lora_targets": []}
    copy.apply({"rl_module": changes})
    return copy
