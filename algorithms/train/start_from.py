"""Start a new run from another one's weights or an adapter, and from named parts of its state: `run.start_from`."""

import contextlib
import json
import logging
import os
import sys
from pathlib import Path

from algorithms.config.errors import ConfigError, shown
from algorithms.config.files import read_sections
from algorithms.config.machine import RLModuleSettings
from algorithms.config.sections import RunSettings
from algorithms.evaluation.results import digest_model
from algorithms.grpo.base import BaseAlgorithm
from algorithms.grpo.config import GRPOConfig
from algorithms.grpo.state import HISTORY, restore_states
from algorithms.history.database import copy_database
from algorithms.learner.group import set_version
from algorithms.models.names import resolve_model
from algorithms.train.checkpoints import Checkpoints, read_state, restore_tensors
from algorithms.train.run_directory import CHECKPOINTS, RunDirectory, run_of, step_of
from algorithms.train.stored_run import StoredRun, reading_history
from algorithms.utils.errors import CheckpointError
from algorithms.utils.files import user_path
from r3env.printable import printable

_logger = logging.getLogger(__name__)

_FROM, _WITH = "run.start_from", "run.start_with"
_ADAPTER = "adapter_config.json"
# Fields of peft's LoraConfig that do not change what an adapter of given rank, alpha and tensors computes.
_HARMLESS = {
    *("r", "lora_alpha", "task_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision"),
    *("inference_mode", "target_modules", "exclude_modules", "layers_pattern", "lora_dropout", "fan_in_fan_out"),
    *("megatron_core", "qalora_group_size", "runtime_config", "eva_config", "corda_config", "loftq_config"),
    *("lora_ga_config", "velora_config", "ensure_weight_tying"),
}
# Other initial weights, such as PiSSA's, are beside a base that they have changed.
_PLAIN = {"peft_type": ("LORA",), "bias": ("none",), "init_lora_weights": (True, "gaussian", "orthogonal", "eva")}


def find_start(run: RunSettings, config: GRPOConfig) -> RunSettings:
    """Return the settings with the checkpoint, or the folder of an adapter, that `run.start_from` stands for now.

    Raises:
        ConfigError: there is none that is whole, or it does not go with the settings.
    """
    if run.start_from is None:
        if run.start_with:
            raise ConfigError(f"{_WITH}: names parts of a checkpoint; fix: name the checkpoint in {_FROM}")
        return run
    folder = user_path(run.start_from).absolute()
    module = config.rl_module_settings
    if (folder / _ADAPTER).is_file():
        if run.start_with:
            raise ConfigError(f"{_WITH}: {folder} is an adapter, which has no other parts; fix: {_WITH}=[]")
        _check_adapter(folder, module)
        return run.changed("run", {"start_from": str(folder)})
    checkpoint = _checkpoint(folder)
    if (checkpoint / "adapter").is_dir():
        if module.lora_rank:  # without, training starts from the two merged
            _check_adapter(checkpoint / "adapter", module)
    elif module.lora_rank:
        raise ConfigError(
            f"{_FROM}: {checkpoint} has no adapter; fix: rl_module.model={checkpoint / 'model'}, whose weights a new "
            "adapter goes beside, or rl_module.lora_rank=0"
        )
    _check_parts(checkpoint, run, module)
    return run.changed("run", {"start_from": str(checkpoint)})


def find_start_again(stored: StoredRun, run: RunSettings, config: GRPOConfig) -> RunSettings:
    """Return the settings of a run that resumes, in which what it started from stays as it was.

    A run without a checkpoint starts again, and may start from something else.

    Raises:
        ConfigError: they name another start than that of a run that has a checkpoint, or as `find_start` says.
    """
    before = read_sections(stored.directory.config_file).get("run") or {}
    source, parts = before.get("start_from"), before.get("start_with") or []
    if source and run.start_from and Path(source).is_relative_to(user_path(run.start_from).absolute()):
        run = run.changed("run", {"start_from": source})  # the run of this checkpoint, named again
    if stored.checkpoint is None:
        return find_start(run, config)
    changed = _FROM if run.start_from != source else _WITH if list(run.start_with) != parts else None
    if changed is None:
        return run
    raise ConfigError(
        f"{changed}: {stored.directory.path} has started, and goes on from its own checkpoint; fix: leave it out, or "
        "start a new run"
    )


def _warn_of_other_base(adapter: Path, stored: object, module: RLModuleSettings) -> None:
    """Warn where an adapter goes beside another model than it was trained beside: by its digest, or else its name.

    Args:
        adapter: its folder.
        stored: the name in its configuration.
        module: the model that it goes beside.
    """
    now, digest = resolve_model(module.model), None
    if step_of(adapter.parent) is not None:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            digest = json.loads((adapter.parent / "state.json").read_bytes()).get("model")
    own = digest_model(module) if digest is not None else None
    if own is not None:
        is_other = digest != own
    else:
        is_other = isinstance(stored, str) and stored != "" and os.path.realpath(stored) != os.path.realpath(now)
    if is_other:
        _logger.warning(
            "rl_module.model: the adapter in %s was trained beside %s, and goes beside %s here; unless the two are the "
            "same weights, training starts from another policy",
            adapter,
            stored or "another model",
            now,
        )


def _checkpoint(folder: Path) -> Path:
    if (folder / "config.json").is_file():
        raise ConfigError(f"{_FROM}: {folder} is a model; fix: rl_module.model={folder}")
    of_run = (folder / CHECKPOINTS).is_dir()
    if not of_run and not (step_of(folder) is not None and folder.is_dir()):
        raise ConfigError(f"{_FROM}: {folder} is no run, checkpoint or adapter; fix: name one, such as runs/NAME")
    try:
        found = Checkpoints(folder / CHECKPOINTS).newest() if of_run else Checkpoints(folder.parent).checked(folder)
    except CheckpointError as error:
        what = str(error).partition("; fix:")[0]
        raise ConfigError(f"{_FROM}: {what}; fix: name an earlier checkpoint, or a whole copy of this one") from error
    if found is None:
        raise ConfigError(f"{_FROM}: {folder} has no checkpoint yet; fix: wait for one, see run.checkpoint_every")
    return found


def _check_adapter(folder: Path, module: RLModuleSettings) -> None:
    try:
        stored = json.loads((folder / _ADAPTER).read_bytes())
        rank, alpha = int(stored["r"]), float(stored["lora_alpha"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ConfigError(f"{_FROM}: {folder / _ADAPTER} cannot be read ({error}); fix: a whole copy of it") from error
    for name, value in stored.items():
        if value and name not in _HARMLESS and value not in _PLAIN.get(name, ()):
            raise ConfigError(
                f"{_FROM}: the adapter in {folder} has {name}={shown(value)}, which is not computed here; "
                "fix: a plain LoRA adapter, or rl_module.model=FOLDER with the adapter merged (peft's merge_and_unload)"
            )
    if (rank, alpha) != (module.lora_rank, module.lora_alpha):
        fix = f"rl_module.lora_rank={rank} rl_module.lora_alpha={alpha:g}"
        raise ConfigError(f"{_FROM}: the adapter in {folder} has rank {rank} and alpha {alpha:g}; fix: {fix}")
    _warn_of_other_base(folder, stored.get("base_model_name_or_path"), module)


def _check_parts(checkpoint: Path, run: RunSettings, module: RLModuleSettings) -> None:
    for part in run.start_with:
        if part == "optimizer":
            of_adapter = (checkpoint / "adapter").is_dir() and not module.lora_rank
            lacks = of_adapter or not list(checkpoint.glob("optimizer*.safetensors"))
        elif not (checkpoint / "arrays.npz").is_file():  # of a supervised start
            lacks = True
        else:
            _, state = read_state(checkpoint)
            lacks = part == "history" and HISTORY not in state["mechanisms"]
        if lacks:
            raise ConfigError(f"{_WITH}: {checkpoint} has no {part} for these weights; fix: leave {part} out")


def start_from(algo: BaseAlgorithm, run: RunSettings, directory: RunDirectory) -> None:
    """Load what a new run starts from, if `run.start_from` names it; steps and tokens count from 0.

    Args:
        algo: built, with its state in the run directory.
        run: its settings, as `find_start` returns them.
        directory: of the new run.

    Raises:
        CheckpointError: a part does not fit.
    """
    if run.start_from is None:
        return
    source = Path(run.start_from)
    if (source / _ADAPTER).is_file():
        restore_tensors(algo, source, "adapter_model", "adapter")
    elif algo.config.rl_module_settings.lora_rank:
        restore_tensors(algo, source / "adapter", "adapter_model", "adapter")
    else:
        restore_tensors(algo, source / "model", "model", "weights")
    if "optimizer" in run.start_with:
        restore_tensors(algo, source, "optimizer", "optimizer")
    if set(run.start_with) & {"history", "queries"}:
        arrays, state = read_state(source)
        try:
            if "queries" in run.start_with:
                if state["queries"] != algo.query_fingerprint:
                    raise ValueError(f"its queries are others; fix: leave queries out of {_WITH}")
                restore_states([algo.sampler], None, arrays, state["mechanisms"])
                untrained = sum(len(step["queries"]) for step in state.get("under_way", ()))
                algo.source.restart({"query_position": max(0, state["query_position"] - untrained)})
            if "history" in run.start_with:
                if algo.history is None:
                    raise ValueError(f"no method of this run reads a history; fix: leave history out of {_WITH}")
                own = RunDirectory(run_of(source))
                with reading_history(own):
                    if "savepoint" in state["mechanisms"][HISTORY]:
                        algo.history.close()
                        copy_database(own.history_file, directory.history_file)
                        algo.keep_state_in(directory.path)
                    restore_states([], algo.history, arrays, state["mechanisms"])
        except CheckpointError:
            raise
        except ValueError as error:
            raise CheckpointError(f"{source}: {error}") from error
    set_version(algo.learner_group, algo.rollout_workers.version + 1)  # an engine that starts anew has the model's own
    algo.rollout_workers.push_weights()
    print(printable(f"started from {' and '.join(['the weights', *run.start_with])} of {source}"), file=sys.stderr)
