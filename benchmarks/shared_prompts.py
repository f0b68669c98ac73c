"""Measure one update of groups whose responses share their prompt's computation, against each with its prompt."""

import copy
import functools
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.table import Table
from transformers import AutoModelForCausalLM, Qwen3Config

from algorithms.learner.attention import shares_prompts, use_packed_attention
from algorithms.learner.batch import TrainingSample
from algorithms.learner.forward import ForwardSettings, score
from algorithms.learner.update import UpdateStatistics, accumulate_gradients
from algorithms.losses.base import LossSettings
from benchmarks.learner import memory_in_use, peak_memory
from benchmarks.random_models import SHAPES, random_model

# Prompt and mean response in tokens, groups.
BATCHES = {"reflection": (1024, 256, 2), "plain": (256, 512, 2), "short": (12, 16, 16)}
SMALL: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
WAYS = ("shared", "unshared")


@dataclass(frozen=True)
class PromptCase:
    """What to measure.

    Args:
        batch: its name in `BATCHES`.
        model: `small`, or a name of `random_models`.
        group_size: responses to a prompt.
        token_budget: of micro-batches.
        checkpointing: whether activations are recomputed.
    """

    batch: str
    model: str
    group_size: int
    token_budget: int
    checkpointing: bool
    device: str
    dtype: str
    threads: int
    seed: int


@dataclass(frozen=True)
class PromptComparison:
    """Shared against unshared on the same rows; lists have one entry a turn, pair by pair."""

    case: PromptCase
    prompt: int
    response: int
    tokens: dict[str, float]
    update_s: dict[str, list[float]]
    scoring_s: dict[str, list[float]]
    peak_mib: dict[str, float]

    @property
    def ratios(self) -> list[float]:
        """How many times faster the shared update was, turn by turn."""
        return [b / a for a, b in zip(self.update_s["shared"], self.update_s["unshared"], strict=True)]

    @property
    def scoring_ratio(self) -> float:
        """How many times faster a scoring pass was, the median."""
        pairs = zip(self.scoring_s["shared"], self.scoring_s["unshared"], strict=True)
        return statistics.median(b / a for a, b in pairs)


def prompt_rows(case: PromptCase, vocabulary: int) -> list[TrainingSample]:
    """Make scored rows of random tokens, each with an advantage; lengths are half to one and a half of their mean."""
    prompt_tokens, response, groups = BATCHES[case.batch]
    rng = np.random.default_rng(case.seed)
    rows = []
    for _ in range(groups):
        prompt = rng.integers(0, vocabulary, prompt_tokens)
        for length in rng.integers(response // 2, response + response // 2 + 1, case.group_size):
            tokens = np.concatenate([prompt, rng.integers(0, vocabulary, length)]).astype(np.int32)
            logprobs = rng.normal(-8.0, 0.3, length).astype(np.float32)
            mask = np.arange(len(tokens)) >= prompt_tokens
            rows.append(TrainingSample(tokens, mask, float(rng.normal()), 1e-3, logprobs, logprobs))
    return rows


def prepare(case: PromptCase) -> tuple[dict[str, Any], list[TrainingSample], ForwardSettings]:
    """Return the same model for each way, the rows, and the forward settings."""
    torch.set_num_threads(case.threads)
    torch.manual_seed(0)
    if case.model in SHAPES:
        lm = random_model(case.model, case.device)
    else:
        lm = AutoModelForCausalLM.from_config(Qwen3Config(**SMALL), dtype=torch.float32).to(case.device)
    if case.checkpointing:
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    models = {"shared": copy.deepcopy(lm).train(), "unshared": lm.train()}
    for way, model in models.items():
        use_packed_attention(model, share_prompts=way == "shared")
        if shares_prompts(model) != (way == "shared"):
            raise RuntimeError("the model does not share prompts")
    rows = prompt_rows(case, lm.config.vocab_size)
    return models, rows, ForwardSettings(token_budget=case.token_budget, dtype=case.dtype)


def compare_prompts(case: PromptCase, repeats: int) -> PromptComparison:
    """Take turns in one process, after one update of each to warm up; memory in a process for each way."""
    models, rows, forward = prepare(case)
    one_thread = case.device == "cpu" and case.threads == 1
    clock = time.process_time if one_thread else time.perf_counter
    update_s: dict[str, list[float]] = {way: [] for way in WAYS}
    scoring_s: dict[str, list[float]] = {way: [] for way in WAYS}
    tokens: dict[str, float] = {}
    for turn in range(repeats + 1):
        for way in WAYS if turn % 2 else WAYS[::-1]:
            models[way].zero_grad(set_to_none=True)
            took, found = _timed(clock, functools.partial(_update, models[way], rows, forward))
            scored, _ = _timed(clock, functools.partial(score, models[way], rows, forward, entropy=True))
            tokens[way] = found.passed_tokens
            if turn:
                update_s[way].append(took)
                scoring_s[way].append(scored)
    prompt, response, _ = BATCHES[case.batch]
    peaks = {way: _peak_in_a_process(case, way) for way in WAYS}
    return PromptComparison(case, prompt, response, tokens, update_s, scoring_s, peaks)


def _update(lm: Any, rows: list[TrainingSample], forward: ForwardSettings) -> UpdateStatistics:
    return accumulate_gradients(lm, rows, forward, LossSettings())


def _timed(clock: Callable[[], float], work: Callable[[], Any]) -> tuple[float, Any]:
    started = clock()
    result = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock() - started, result


def _peak_in_a_process(case: PromptCase, way: str) -> float:
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(update_peak, (case, way))


def update_peak(case: PromptCase, way: str) -> float:
    """Return the MiB that an update takes at most, above weights and gradients; to be called in a fresh process."""
    models, rows, forward = prepare(case)
    for parameter in models[way].parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = memory_in_use(case.device)
    _update(models[way], rows, forward)
    return (peak_memory(case.device) - before) / 2**20


def prompt_table(comparisons: Sequence[PromptComparison]) -> Table:
    """Make the table, a line per batch."""
    table = Table(title="Gradient of one update, prompts computed once against once per response", title_justify="left")
    for column in (
        "batch",
        "prompt",
        "mean response",
        "tokens",
        "shared, s",
        "unshared, s",
        "faster",
        "scoring",
        "MiB",
        "less by",
    ):
        table.add_column(column, justify="left" if column == "batch" else "right")
    for one in comparisons:
        ratios, seconds = one.ratios, [statistics.median(one.update_s[way]) for way in WAYS]
        table.add_row(
            one.case.batch + (", checkpointed" if one.case.checkpointing else ""),
            str(one.prompt),
            str(one.response),
            f"{one.tokens['unshared'] / one.tokens['shared']:.2f}x fewer",
            f"{seconds[0]:.2f}",
            f"{seconds[1]:.2f}",
            f"{statistics.median(ratios):.2f}x ({min(ratios):.2f}-{max(ratios):.2f})",
            f"{one.scoring_ratio:.2f}x",
            f"{one.peak_mib['shared']:.0f} of {one.peak_mib['unshared']:.0f}",
            f"{one.peak_mib['unshared'] / one.peak_mib['shared']:.2f}x",
        )
    return table
