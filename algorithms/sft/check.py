"""`python -m algorithms.sft --check`: print what would be trained on what, and whether the machine suffices."""

import math
import os
from collections.abc import Iterator

from algorithms.config.sections import RunSettings
from algorithms.models.names import ModelFacts, context_length, resolve_model, validate_model
from algorithms.models.tokenizer import load_tokenizer
from algorithms.preflight.activations import full_loss_bytes
from algorithms.preflight.chat_template import text_lines
from algorithms.preflight.check import validate_sequences
from algorithms.preflight.description import (
    NOT_CACHED,
    NOT_ENOUGH,
    Line,
    Report,
    bytes_text,
    evaluation_text,
    sum_text,
    to_report,
)
from algorithms.preflight.environments import validate_environment
from algorithms.preflight.installation import found_gpus
from algorithms.preflight.memory import LIBRARIES_BYTES, learner_bytes
from algorithms.sft.config import SFTConfig, check_layers
from algorithms.sft.rows import Row, Rows, make_environment, read_rows

# What training's learners may hold, and the trainer does not.
_NOT_HELD = ("reference", "teacher")


def check(config: SFTConfig, run: RunSettings) -> Report:
    """Describe what a run would train, and whether this machine's memory suffices; the solutions are read.

    A model on the Hub that cannot be reached is no error.

    Raises:
        ConfigError: wrong input; one line.
    """
    config.check_settings()
    environment = make_environment(config)
    model = validate_model(config, unreachable_ok=True)
    facts = validate_environment(config, fetch=False, trial=True)
    lines: list[Line | tuple[str, str]] = [("algorithm", "SFT")]
    if model is None:
        lines.append(("model", f"{config.rl_module_settings.model}: {NOT_CACHED}"))
        return to_report([*lines, ("evaluation", _evaluation(config, facts.held_out))])
    validate_sequences(config, model, facts)
    check_layers(config)
    module = config.rl_module_settings
    tokenizer = load_tokenizer(resolve_model(module.model), module.revision, module.trust_remote_code)
    rows = read_rows(config, environment, tokenizer, context_length(module))
    lines += [("run", _run(config, run, rows)), ("model", _model(config, model))]
    lines += [("environment", _data(config)), ("solutions", rows.described().partition(": ")[2])]
    lines += [_memory(config, model, rows), ("evaluation", _evaluation(config, facts.held_out))]
    lines += _example(rows.train[0], tokenizer)
    return to_report(lines)


def _run(config: SFTConfig, run: RunSettings, rows: Rows) -> str:
    settings = config.sft_settings
    micro = min(settings.micro_batch_size, settings.batch_size)
    # As transformers' Trainer counts: a pass ends in a smaller batch.
    each = math.ceil(math.ceil(len(rows.train) / micro) / (settings.batch_size // micro))
    steps = settings.steps or math.ceil(settings.epochs * each)
    every = f"every {run.checkpoint_every} steps and at the end" if run.checkpoint_every else "at the end"
    step = f"{steps} steps of {settings.batch_size} rows, an epoch is {each}"
    return f"{run.dir}/{run.name}: {step}; lr {settings.lr:g}, seed {run.seed}, checkpoint {every}"


def _model(config: SFTConfig, model: ModelFacts) -> str:
    module = config.rl_module_settings
    what = f"an adapter of rank {module.lora_rank}" if module.lora_rank else "all weights"
    return f"{model.name}: {model.architecture}, {model.parameters:,} parameters; {what} trained, in {module.dtype}"


def _data(config: SFTConfig) -> str:
    settings = config.environment_settings
    return f"{settings.id}, {settings.data}" if settings.data else settings.id


def _memory(config: SFTConfig, model: ModelFacts, rows: Rows) -> Line:
    parts = {name: size for name, size in learner_bytes(config, model).items() if name not in _NOT_HELD}
    micro = min(config.sft_settings.micro_batch_size, config.sft_settings.batch_size)
    length = max(len(row.prompt) + len(row.response) for row in rows.train)
    activations = full_loss_bytes(config.rl_module_settings, micro, length)
    if activations is None:
        return Line("memory", f"{sum_text(parts)}, without activations", True)
    gpus = found_gpus()
    libraries = 0 if gpus else LIBRARIES_BYTES
    needed = sum(parts.values()) + activations + libraries
    there = gpus.least_bytes if gpus else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    text = (
        f"{sum_text(parts)}; with activations of {micro} × {length} tokens, {bytes_text(activations)}, up to "
        f"{bytes_text(needed)}{', libraries included' if libraries else ''}; this machine has {bytes_text(there)}"
    )
    enough = needed <= there
    fix = "fix: a smaller sft.micro_batch_size or sft.max_tokens, rl_module.gradient_checkpointing=true, or an adapter"
    return Line("memory", text if enough else f"{text}{NOT_ENOUGH}; {fix}", enough)


def _evaluation(config: SFTConfig, held_out: int | None) -> str:
    return evaluation_text(config, held_out, "before and after")


def _example(row: Row, tokenizer: object) -> Iterator[tuple[str, str]]:
    """Yield the first row as it is trained on: its tokens, decoded."""
    for name, tokens, loss in (("prompt", row.prompt, "no loss"), ("solution", row.response, "the loss is here")):
        yield f"first {name}", f"{row.uid}, {len(tokens)} tokens, {loss}:"
        yield from text_lines("", str(tokenizer.decode(tokens)))  # type: ignore[attr-defined]
