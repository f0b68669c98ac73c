"""Describe an exported model on a card, and upload it to the Hugging Face Hub; HF_ENDPOINT names another server."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from algorithms.config.plain_yaml import load_yaml
from algorithms.config.schema import Settings, hyperparameters
from algorithms.config.secrets import without_secrets
from algorithms.config.sections import SECTIONS, RunSettings
from algorithms.train.closing_table import problems_named
from algorithms.train.run_directory import RunDirectory
from algorithms.utils.errors import InputError
from algorithms.utils.provenance import code_commit, code_version
from algorithms.utils.statistics import FEWEST_PROBLEMS, paired_bootstrap, score
from r3env.data.sources import DataError, parse_source

CARD = "README.md"
TAGS = ("reinforcement-learning", "grpo", "r3-grpo", "ray")
SUPERVISED_TAGS = ("sft", "r3-grpo")
_KNOWN: dict[str, type[Settings]] = {"run": RunSettings, **SECTIONS}
_ALSO = {"run": {"steps"}}
# A supervised start's file holds them for the training that follows.
_OF_TRAINING = ("training", "reward", "learners", "history", "run.steps")
_METHODS = {"r3_grpo": "R³-GRPO (replay, reflection, ranking rewards)", "grpo": "GRPO", "sft": "supervised learning"}


def model_card(run: Path, step: int, *, name: str, dtype: str) -> str:
    """Return the README.md of an exported model, in the Hub's form.

    It lists the settings that are columns of TensorBoard's HPARAMS page, and numbers and switches of methods: no path,
    no option, and no secret (`without_secrets`).

    Args:
        run: the run directory.
        step: of the exported checkpoint. Evaluations of other steps do not belong to it and stay out.
        name: what the card calls the model.
        dtype: of the weights.

    Raises:
        ValueError: a file of the run is damaged.
    """
    directory = RunDirectory(run)
    config = without_secrets(_read(directory.config_file))
    algorithm = str(config.get("algorithm") or "")
    base = _setting(config, "rl_module", "model")
    on_hub = isinstance(base, str) and base.count("/") == 1 and not _is_local(base) and not base.startswith("embedded:")
    tags = SUPERVISED_TAGS if algorithm == "sft" else TAGS
    front: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation", "tags": list(tags)}
    if on_hub:
        front |= {"base_model": base}
    began = ", beginning with weights of another run or an adapter" if _setting(config, "run", "start_from") else ""
    lines = [
        "---",
        yaml.safe_dump(front, sort_keys=False).rstrip(),
        "---",
        f"# {name}",
        "",
        f"{_base(base, on_hub)} trained for {step:,} steps with {_METHODS.get(algorithm, algorithm or 'GRPO')}"
        f"{began}. Weights in {dtype}.",
        "",
        "## Evaluation",
        "",
        *_evaluation(directory, config, step),
        "",
        "## Settings",
        "",
        *_settings(config),
        "",
        "## Code",
        "",
        *_code(_read(directory.summary_file)),
    ]
    return "\n".join(lines) + "\n"


def _base(base: object, on_hub: bool) -> str:
    if on_hub or (isinstance(base, str) and base.startswith("embedded:")):
        return f"`{base}`"
    return "A model from a folder"


def _evaluation(directory: RunDirectory, config: Mapping[str, Any], step: int) -> Iterator[str]:
    stored = directory.read_evaluation()
    sides = {side: stored[side] for side in ("before", "after") if side in stored}
    if "after" in sides and sides["after"].get("step") != step:
        del sides["after"]
    if "after" not in sides:
        yield f"This checkpoint, of step {step}, was not evaluated by its run."
        return
    problems = problems_named(_setting(config, "evaluation", "data"))
    samples = _setting(config, "evaluation", "samples")
    count = len(sides["after"].get("correct", {}))
    yield f"{count} {problems} problems, {samples} answers each, in the run itself. In brackets: 95 % intervals,"
    yield "bootstrap over problems."
    yield ""
    yield f"| measure | {' | '.join(sides)} |"
    yield f"|---|{'---|' * len(sides)}"
    measures = dict.fromkeys(name for side in sides.values() for name in side.get("metrics", {}))
    for measure in measures:
        cells = (_cell(measure, side) for side in sides.values())
        yield f"| {measure} | {' | '.join(cells)} |"
    correct = [side.get("correct", {}) for side in sides.values()]
    change = paired_bootstrap(*correct) if len(correct) == 2 else None
    if change is not None:
        yield ""
        yield (
            f"Change of pass@1: {change.mean:+.3f} [{change.low:+.3f}, {change.high:+.3f}], paired over "
            f"{change.problems} problems: {change.trend.value}."
        )


def _cell(measure: str, side: Mapping[str, Any]) -> str:
    value = side.get("metrics", {}).get(measure)
    if not isinstance(value, int | float):
        return ""
    shares = list(side.get("correct", {}).values())
    if measure == "pass@1" and len(shares) >= FEWEST_PROBLEMS:
        interval = score(shares)
        return f"{value:.3f} [{interval.low:.3f}, {interval.high:.3f}]"
    return f"{value:.3f}" if abs(value) <= 1 else f"{value:,.1f}"


def _settings(config: Mapping[str, Any]) -> Iterator[str]:
    if not config:
        yield "The run has no config.yaml."
        return
    yield "| setting | value |"
    yield "|---|---|"
    without = _OF_TRAINING if config.get("algorithm") == "sft" else ()
    for section, values in config.items():
        for key, value in _shown(section, values if isinstance(values, dict) else {}):
            if section in without or f"{section}.{key}" in without:
                continue
            yield f"| `{section}.{key}` | `{str(value).replace('|', '&#124;')}` |"


def _shown(section: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings of a section that belong on a card; of a method's own section its switch and its numbers."""
    known = _KNOWN.get(section)
    if known is not None:
        marked = {name.partition(".")[2] for name in hyperparameters({section: known})} | _ALSO.get(section, set())
        for key in (key for key in values if key in marked):
            value = values[key]
            hidden = isinstance(value, str) and (_is_local if key in ("model", "data") else _is_path)(value)
            if isinstance(value, bool | int | float | str) and not hidden:
                yield key, value
        return
    for key, value in values.items():
        if isinstance(value, bool | int | float) and (key == "enabled" or values.get("enabled", True)):
            yield key, value


def _is_path(name: str) -> bool:
    """Return whether a name, such as an environment's, is written as a path."""
    return name.startswith((".", "/", "~", "${")) or name.partition(":")[0].endswith(".py")


def _is_local(name: str) -> bool:
    """Return whether a model or data is a file or a folder, there or not, and none of the Hub or of an environment."""
    if _is_path(name) or Path(name).exists():
        return True
    try:
        return parse_source(name).kind == "file"
    except DataError:
        return "/" in name


def _code(summary: Mapping[str, Any]) -> Iterator[str]:
    trained = summary.get("code") or {}
    now = {"version": code_version(), "commit": code_commit()}
    what = "Trained" if trained else "Exported"
    found = trained or now
    yield f"{what} with r3-grpo {found.get('version') or 'of an unknown version'}, commit `{found.get('commit')}`."


def _setting(config: Mapping[str, Any], section: str, key: str) -> Any:
    return (config.get(section) or {}).get(key)


def _read(file: Path) -> dict[str, Any]:
    """An object of YAML or JSON; empty where there is no such file."""
    if not file.is_file():
        return {}
    text = file.read_text(encoding="utf-8")
    try:
        content = json.loads(text) if file.suffix == ".json" else load_yaml(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: cannot be read ({' '.join(str(error).split())})") from error
    return content if isinstance(content, dict) else {}


class PublishError(InputError):
    """The Hub cannot be reached, or refuses; the message is one line with the fix."""


def check_name(repo: str) -> None:
    """Check the name of a repository.

    Raises:
        PublishError: the Hub has no such names.
    """
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        reason = str(error).splitlines()[0]
        raise PublishError(f"--push: {repo!r} cannot name a repository ({reason}); fix: USER/NAME") from error


def push(folder: Path, repo: str, *, private: bool, message: str) -> str:
    """Upload a folder as one commit to a model repository, which is made if it is not there; returns its address.

    Args:
        folder: what to upload.
        repo: `USER/NAME`, or `NAME` for one of the user that is logged in.
        private: whether a new repository is private in any case; else it is what its owner's default on the Hub says.
        message: of the commit.

    Raises:
        PublishError: not logged in, no right to write there, no connection, or the upload failed.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        address = api.create_repo(repo, private=private or None, exist_ok=True)
        api.upload_folder(folder_path=folder, repo_id=address.repo_id, commit_message=message)
    except Exception as error:  # the client's errors have no base in common
        reason = " ".join(str(error).split()) or type(error).__name__
        fix = f"fix: hf auth login with a token that may write, then: hf upload {repo} {folder}"
        raise PublishError(f"--push: {repo}: {reason}; the export is in {folder}; {fix}") from error
    return str(address)
