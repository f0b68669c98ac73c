"""Whether two evaluations of a run measured the same."""

import yaml

# What an evaluation depends on, beside the weights; None: on the whole section.
_MEASURED_BY: dict[str, frozenset[str] | None] = {
    "environment": None,
    "rl_module": frozenset({"model", "revision"}),
    "env_runners": frozenset({"temperature", "top_p", "max_response_tokens"}),
    "evaluation": frozenset({"data", "columns", "samples", "k", "limit", "temperature", "top_p", "reflection"}),
}


def changed_measurement(before: str, after: str) -> list[str]:
    """Settings in which two configurations differ, as YAML, and which make an evaluation another measurement."""
    old, new = _measurement(before), _measurement(after)
    return sorted(key for key in old.keys() & new.keys() if old[key] != new[key])


def _measurement(config_yaml: str) -> dict[str, object]:
    sections = yaml.safe_load(config_yaml)
    found = {
        f"{section}.{key}": value
        for section, keys in _MEASURED_BY.items()
        for key, value in (sections.get(section) or {}).items()
        if keys is None or key in keys
    }
    for key in ("temperature", "top_p"):
        if found.get(f"evaluation.{key}") is not None:  # the one of training does not matter
            found.pop(f"env_runners.{key}", None)
    return found
