"""Measure one update of groups whose responses share their prompt's computation, against each with its prompt."""

import copy
import functools
import multiprocessing
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
from benchmarks.record import empty_table

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


@dataclass
class Turns:
    """The turns of one way: seconds of updates and of scoring passes, what the last update found, and its GPU peak."""

    update_s: list[float] = field(default_factory=list)
    scoring_s: list[float] = field(default_factory=list)
    statistics: UpdateStatistics = field(default_factory=UpdateStatistics)
    peak_gib: float | None = None

    def take(
        self,
        lm: Any,
        rows: Sequence[TrainingSample],
        forward: ForwardSettings,
        clock: Callable[[], float],
        *,
        counts: bool,
    ) -> None:
        """Update and score once; the first turn warms up and does not count."""
        lm.zero_grad(set_to_none=True)
        updated_s, self.statistics, self.peak_gib = _timed(
            clock, functools.partial(accumulate_gradients, lm, rows, forward, LossSettings())
        )
        lm.zero_grad(set_to_none=True)
        scored_s, _, _ = _timed(clock, functools.partial(score, lm, rows, forward, entropy=True))
        if counts:
            self.update_s.append(updated_s)
            self.scoring_s.append(scored_s)


def turn_clock(device: str, threads: int) -> Callable[[], float]:
    """Return processor time where the process computes on one thread of a CPU, else wall time."""
    return time.process_time if device == "cpu" and threads == 1 else time.perf_counter


def _timed(clock: Callable[[], float], work: Callable[[], Any]) -> tuple[float, Any, float | None]:
    """Return seconds, result, and peak GPU memory in GiB."""
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    started = clock()
    result = work()
    if on_gpu:
        torch.cuda.synchronize()
    return clock() - started, result, torch.cuda.max_memory_allocated() / 2**30 if on_gpu else None


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
    turns = {way: Turns() for way in WAYS}
    clock = turn_clock(case.device, case.threads)
    for turn in range(repeats + 1):
        for way in WAYS if turn % 2 else WAYS[::-1]:
            turns[way].take(models[way], rows, forward, clock, counts=turn > 0)
    prompt, response, _ = BATCHES[case.batch]
    return PromptComparison(
        case,
        prompt,
        response,
        {way: turns[way].statistics.passed_tokens for way in WAYS},
        {way: turns[way].update_s for way in WAYS},
        {way: turns[way].scoring_s for way in WAYS},
        {way: _peak_in_a_process(case, way) for way in WAYS},
    )


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
    accumulate_gradients(models[way], rows, forward, LossSettings())
    return (peak_memory(case.device) - before) / 2**20


def prompt_table(comparisons: Sequence[PromptComparison]) -> Table:
    """Make the table, a line per batch."""
    columns = ("batch", "prompt", "mean response", "tokens", "shared, s", "unshared, s", "faster", "scoring", "MiB")
    title = "Gradient of one update, prompts computed once against once per response"
    table = empty_table(title, *columns, "less by")
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
