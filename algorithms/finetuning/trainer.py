"""TRL's trainer on rows of tokens: built from a configuration, resumed, and read out as weights for Hugging Face."""

import gc
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from transformers.utils.logging import disable_progress_bar
from trl import SFTConfig as TRLConfig
from trl import SFTTrainer

from algorithms.config.sections import RunSettings
from algorithms.finetuning.config import SFTConfig
from algorithms.finetuning.rows import Row
from algorithms.learner.model import disable_dropout, lora_config
from algorithms.learner.weights import buckets, weights_of_files
from algorithms.models.causal_lm import load_causal_lm, recomputes
from algorithms.models.names import resolve_model
from algorithms.models.tokenizer import ModelConfigs, load_tokenizer
from algorithms.train.checkpoints import complete_checkpoint
from algorithms.train.manifest import MANIFEST, damage, write_manifest
from algorithms.train.run_directory import checkpoint_path
from algorithms.train.tensor_files import write_tensors
from algorithms.utils.errors import CheckpointError, RunError

IGNORED = -100  # the label of a token that the loss leaves out
KEPT = 2  # of the trainer's own checkpoints: one that a kill tore has another before it
_BUCKET_BYTES = 2**30

Metrics = dict[str, float]


class LossNotFinite(RunError):
    """Training has diverged."""


def to_dataset(rows: Iterable[Row]) -> Dataset:
    """Return rows as TRL takes them: the loss is on the response alone, its end token included."""
    return Dataset.from_list(
        [
            {
                "input_ids": [*row.prompt.tolist(), *row.response.tolist()],
                "labels": [IGNORED] * len(row.prompt) + row.response.tolist(),
            }
            for row in rows
        ]
    )


def make_trainer(
    config: SFTConfig,
    run: RunSettings,
    folder: Path,
    train: Sequence[Row],
    held_out: Sequence[Row],
    callback: TrainerCallback,
) -> SFTTrainer:
    """Load the model, with an adapter if `rl_module.lora_rank` says so, and make its trainer.

    Args:
        config: the configuration.
        run: seed and checkpoints.
        folder: of the trainer's own checkpoints.
        train: the rows to train on.
        held_out: the rows that `SFTTrainer.evaluate` measures.
        callback: is told what the trainer does.
    """
    disable_progress_bar()  # transformers' own, of loading and of writing
    module = config.rl_module_settings
    model = resolve_model(module.model)
    dtype = module.dtype if module.lora_rank else "float32"
    lm = load_causal_lm(model, dtype, module.revision, module.trust_remote_code)
    disable_dropout(lm)
    recomputing = recomputes(lm, module.gradient_checkpointing)
    adapter = lora_config(module.lora_rank, module.lora_alpha, module.lora_targets) if module.lora_rank else None
    trainer = SFTTrainer(
        lm,
        _arguments(config, run, folder, evaluates=bool(held_out), recomputing=recomputing),
        train_dataset=to_dataset(train),
        eval_dataset=to_dataset(held_out) if held_out else None,
        processing_class=load_tokenizer(model, module.revision, module.trust_remote_code),
        callbacks=[callback],
        peft_config=adapter,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _arguments(config: SFTConfig, run: RunSettings, folder: Path, *, evaluates: bool, recomputing: bool) -> TRLConfig:
    settings, module, interval = config.sft_settings, config.rl_module_settings, config.evaluation_settings.interval
    micro = min(settings.micro_batch_size, settings.batch_size)
    arguments = TRLConfig(
        output_dir=str(folder),
        per_device_train_batch_size=micro,
        per_device_eval_batch_size=micro,
        gradient_accumulation_steps=settings.batch_size // micro,
        num_train_epochs=settings.epochs,
        max_steps=settings.steps or -1,
        learning_rate=settings.lr,
        lr_scheduler_type="linear",
        warmup_steps=settings.warmup_steps,
        max_grad_norm=config.training_settings.grad_clip,
        bf16=module.dtype == "bfloat16",
        gradient_checkpointing=recomputing,
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
        seed=run.seed,
        max_length=None,  # the rows are short enough already
        dataset_kwargs={"skip_prepare_dataset": True},
        logging_steps=1,
        logging_nan_inf_filter=False,
        eval_strategy="steps" if interval and evaluates else "no",
        eval_steps=interval or None,
        save_strategy="steps" if run.checkpoint_every else "no",
        save_steps=run.checkpoint_every or 1,
        save_total_limit=KEPT,
        report_to=[],
        disable_tqdm=True,
    )
    arguments._n_gpu = min(1, arguments.n_gpu)  # else it splits each batch over all GPUs
    return arguments


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest complete checkpoint of the trainer's own; its manifest is the file that is written last.

    Raises:
        CheckpointError: it is damaged.
    """
    found = {step_of(path): path for path in folder.glob("checkpoint-*") if (path / MANIFEST).exists()}
    if not found:
        return None
    newest = found[max(found)]
    if trouble := damage(newest):
        fix = "put back a whole copy of it, or delete the folder, which goes back to the one before it"
        raise CheckpointError(f"{newest}: the checkpoint is damaged, {trouble}; fix: {fix}")
    return newest


def step_of(checkpoint: Path) -> int:
    """Return the step of a checkpoint, the trainer's own or the run's."""
    return int(re.split("[-_]", checkpoint.name)[-1])


def held_out_metrics(trainer: SFTTrainer) -> Metrics:
    """Return loss and entropy in nats per token, and the share of tokens that are the likeliest, on held-out rows."""
    if trainer.eval_dataset is None:
        return {}
    return from_eval(trainer.evaluate())


def from_eval(logs: dict[str, float]) -> Metrics:
    """Return the trainer's evaluation under our names."""
    names = {"eval_loss": "loss", "eval_entropy": "entropy", "eval_mean_token_accuracy": "token_accuracy"}
    return {ours: logs[theirs] for theirs, ours in names.items() if theirs in logs}


class TrainerEvents(TrainerCallback):
    """Passes on the trainer's numbers, and lets it stop after a step.

    Args:
        on_start: gets the number of steps in all, and those that are done.
        on_step: gets step and metrics of each step.
        on_held_out: gets step and metrics of an evaluation between steps.
        on_save: gets the step of each checkpoint.
        stop: whether to save and stop now.
    """

    def __init__(
        self,
        on_start: Callable[[int, int], None],
        on_step: Callable[[int, Metrics], None],
        on_held_out: Callable[[int, Metrics], None],
        on_save: Callable[[int], None],
        stop: Callable[[], bool],
    ) -> None:
        self._on_start, self._on_step, self._on_held_out = on_start, on_step, on_held_out
        self._on_save, self._stop = on_save, stop
        self._training = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Report how many steps there are."""
        self._training = True
        self._on_start(state.max_steps, state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note that no step follows."""
        self._training = False

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Save and stop if that is wanted; after the last step neither save nor measure, which the run does itself.

        The trainer would resume from a checkpoint of the last step with one step more.
        """
        if state.global_step >= state.max_steps:
            control.should_save = control.should_evaluate = False
        elif self._stop():
            control.should_save = control.should_training_stop = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Complete a checkpoint, and report it."""
        write_manifest(Path(args.output_dir) / f"checkpoint-{state.global_step}")
        self._on_save(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Report a step, or an evaluation between steps.

        Raises:
            LossNotFinite: the loss is not finite.
        """
        if "loss" in logs:
            if not math.isfinite(logs["loss"]):
                fix = "fix: a smaller sft.lr, or sft.warmup_steps"
                raise LossNotFinite(f"step {state.global_step}: the loss is {logs['loss']}; {fix}")
            self._on_step(state.global_step, _step_metrics(logs))
        elif "eval_loss" in logs and self._training:
            self._on_held_out(state.global_step, from_eval(logs))


def _step_metrics(logs: dict[str, float]) -> Metrics:
    names = {
        "loss": "sft/loss",
        "entropy": "sft/entropy",
        "mean_token_accuracy": "sft/token_accuracy",
        "learning_rate": "sft/lr",
        "grad_norm": "sft/grad_norm",
        "epoch": "sft/epoch",
        "num_tokens": "sft/tokens",
    }
    return {ours: float(logs[theirs]) for theirs, ours in names.items() if theirs in logs}


def save_result(trainer: SFTTrainer, config: SFTConfig, folder: Path, metrics: Metrics) -> Path:
    """Write `folder/step_NNNNNN` with `model/`, and `adapter/` where one was trained; complete or not at all.

    The model is whole and float32, as training's checkpoints have it. Returns the path.
    """
    module = config.rl_module_settings
    lm: Any = trainer.model
    step = trainer.state.global_step
    with complete_checkpoint(folder, step) as partial:
        (partial / "model").mkdir(parents=True)
        if module.lora_rank:
            lm.save_pretrained(partial / "adapter")
            (partial / "adapter" / "README.md").unlink(missing_ok=True)  # a form to fill in
            lm = lm.get_base_model()
        weights = ((name, tensor.cpu().clone()) for name, tensor in weights_of_files(lm))  # tied ones share memory
        write_tensors(partial / "model", "model", buckets(weights, _BUCKET_BYTES))
        ModelConfigs.read(module).save(partial / "model")
        tokenizer = load_tokenizer(resolve_model(module.model), module.revision, module.trust_remote_code)
        tokenizer.save_pretrained(partial / "model")
        (partial / "state.json").write_text(json.dumps({"step": step, "metrics": metrics}, indent=1), encoding="utf-8")
    return checkpoint_path(folder, step)


def free_memory() -> None:
    """Give the memory of a trainer that is no longer used to the next engine."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def result_metrics(result: Path) -> Metrics:
    """Return the metrics that `save_result` stored."""
    return dict(json.loads((result / "state.json").read_bytes())["metrics"])
