"""In which settings two evaluations differ."""

from collections.abc import Iterator, Mapping
from typing import Any

from algorithms.configuration.errors import shown

# They say what is told of the answers, how a model is trained and what it runs on, not which answers are drawn.
_WITHOUT_BEARING = frozenset(
    {
        "evaluation.k",
        "evaluation.interval",
        "benchmarks.limits",
        *(
            f"env_runners.{key}"
            for key in (
                "num_env_runners",
                "num_cpus_per_env_runner",
                "num_gpus_per_env_runner",
                "num_threads",
                "timeout_s",
                "step_timeout_s",
                "max_num_seqs",
                "gpu_memory_utilization",
                "tensor_parallel_size",
                "weight_transfer",
                "logp_mismatch_warning",
                "sleep_while_training",
            )
        ),
    }
)
_SECTIONS_WITHOUT_BEARING = ("run.", "training.", "learners.", "reward.")
_SEED = "run.seed"
# Where `evaluation` says them, those of `env_runners` draw no answer.
_OVERRIDDEN = ("temperature", "top_p")


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, str]:
    """By `section.key`, `A → B` for each setting that is not the same in both.

    Args:
        first: sections, as in `evaluation.yaml`.
        second: of the other evaluation.
    """
    one, other = dict(_flat(first)), dict(_flat(second))
    return {
        name: f"{_shown(one, name)} → {_shown(other, name)}"
        for name in dict.fromkeys([*one, *other])
        if one.get(name, _shown) != other.get(name, _shown)
    }


def bearing_on_answers(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, str]:
    """Of these differences those that bear on which answers are drawn."""
    own = [settings.get("evaluation") or {} for settings in (first, second)]
    overridden = {f"env_runners.{key}" for key in _OVERRIDDEN if all(one.get(key) is not None for one in own)}
    return {
        name: values
        for name, values in differences(first, second).items()
        if name == _SEED or not (name in _WITHOUT_BEARING | overridden or name.startswith(_SECTIONS_WITHOUT_BEARING))
    }


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by their dotted names, those of mappings one by one; an empty mapping has none."""
    for key, entry in value.items():
        if isinstance(entry, Mapping):
            yield from _flat(entry, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", entry


def _shown(settings: Mapping[str, Any], name: str) -> str:
    return shown(settings[name]) if name in settings else "not set"
