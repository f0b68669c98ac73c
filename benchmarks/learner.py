"""Memory and time of log-probs, entropies and their gradient over a large vocabulary, in chunks and all at once.

    python -m benchmarks.learner            # 2,048 tokens: a minute or two on a CPU
    python -m benchmarks.learner --full     # 8,192 and 32,768 tokens

`statistics` is the output head alone: log-probs, entropies and the gradient of a clipped policy loss by hidden states
and weight. `scoring` is the same without gradient. `update` is a whole micro-batch through a random Qwen2 of the given
width and depth. The ways: `naive` multiplies all logits out and leaves the gradient to autograd;
`recomputed` takes chunks of logits and computes them again in backward; `chunked` computes the gradient while a
chunk's logits exist, as an update does.

Every measurement has a process of its own. Memory is what the peak lies above the state with inputs and weights in
place: of the resident set on a CPU (Linux), of allocated memory on a GPU. Time is the best of --repeats after a small
warm-up; on a CPU it is processor time, which other processes of the machine disturb least. What would not fit in the
free memory is left out. Needs no Ray.
"""

import gc
import multiprocessing
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from rich.table import Table
from torch.nn import functional

from algorithms.learner.attention import use_packed_attention
from algorithms.learner.batch import TrainingSample
from algorithms.learner.chunked_logprobs import chunked_logprobs, chunked_logprobs_and_gradient
from algorithms.learner.forward import ForwardSettings, response_states, token_batch
from algorithms.learner.loss import flat
from algorithms.learner.update import accumulate_gradients
from algorithms.losses.base import LossSettings
from benchmarks.record import benchmark_parser, empty_table, show

WAYS = {
    "statistics": ("naive", "recomputed", "chunked"),
    "scoring": ("naive", "chunked"),
    "update": ("naive", "chunked"),
}


@dataclass(frozen=True)
class Case:
    """One thing to measure.

    Args:
        what: `statistics`, `scoring` or `update`.
        way: see the module.
        tokens: N.
        vocabulary: V.
        hidden: D.
        dtype: to multiply in; the weight is float32.
        chunk: tokens whose logits exist at once.
        layers: of the model of an update.
        device: `cpu` or `cuda`.
        threads: of torch.
        repeats: the best of so many counts.
    """

    what: str
    way: str
    tokens: int
    vocabulary: int
    hidden: int
    dtype: str
    chunk: int
    layers: int
    device: str
    threads: int
    repeats: int

    @property
    def naive_bytes(self) -> int:
        """About what the naive way needs at once: three float32 tensors of all logits, the weight and its gradient."""
        return 12 * self.tokens * self.vocabulary + 8 * self.vocabulary * self.hidden


@dataclass(frozen=True)
class Measurement:
    """What a case took: seconds, and bytes above what was there before."""

    seconds: float
    peak_bytes: int


def measure(case: Case) -> Measurement:
    """Measure in this process, which should be a fresh one."""
    torch.set_num_threads(case.threads)
    torch.manual_seed(0)
    prepare = _prepare_update if case.what == "update" else _prepare_head
    run = prepare(case)
    prepare(replace(case, tokens=64, vocabulary=512, hidden=64))()  # libraries are loaded before anything is counted
    gc.collect()
    before = memory_in_use(case.device)
    seconds = []
    clock = time.perf_counter if case.device == "cuda" else time.process_time
    for _ in range(case.repeats):
        started = clock()
        run()
        if case.device == "cuda":
            torch.cuda.synchronize()
        seconds.append(clock() - started)
    return Measurement(min(seconds), peak_memory(case.device) - before)


def memory_in_use(device: str) -> int:
    """Return the bytes in use, and start the peak anew."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return int(psutil.Process().memory_info().rss)


def peak_memory(device: str) -> int:
    """Return the most bytes in use since `memory_in_use`."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    # Not getrusage: its maximum outlives the reset, and a new process starts with that of the one that made it.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def _slope(logprobs: torch.Tensor, entropies: torch.Tensor | None, rows: slice) -> tuple[torch.Tensor, ...]:
    """Return the slope of the loss `-mean(min(r, 1.28))` at the policy itself: every token has a gradient."""
    return (-torch.ones_like(logprobs),)


def _whole(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probs and entropies from all logits at once, with no tensor more than needed."""
    all_logprobs = functional.log_softmax(functional.linear(hidden, weight.to(hidden.dtype)).float(), dim=-1)
    logprobs = all_logprobs.gather(-1, targets[:, None]).squeeze(-1)
    with torch.no_grad():
        entropies = torch.special.entr(all_logprobs.exp()).sum(dim=-1)
    return logprobs, entropies


def _prepare_head(case: Case) -> Callable[[], None]:
    dtype, device = getattr(torch, case.dtype), torch.device(case.device)
    train = case.what == "statistics"
    hidden = torch.randn(case.tokens, case.hidden, device=device).to(dtype).requires_grad_(train)
    weight = torch.randn(case.vocabulary, case.hidden, device=device).mul_(0.02).requires_grad_(train)
    targets = torch.randint(case.vocabulary, (case.tokens,), device=device)

    def run() -> None:
        hidden.grad = weight.grad = None
        with torch.set_grad_enabled(train):
            if case.way == "naive":
                loss = -_whole(hidden, weight, targets)[0].sum()
            elif case.way == "recomputed" or not train:
                loss = -chunked_logprobs(hidden, weight, targets, chunk=case.chunk)[0].sum()
            else:
                loss = chunked_logprobs_and_gradient(hidden, weight, targets, _slope, chunk=case.chunk)[2]
            if train:
                loss.backward()

    return run


def _prepare_update(case: Case) -> Callable[[], None]:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=case.vocabulary,
        hidden_size=case.hidden,
        intermediate_size=case.hidden * 35 // 6,
        num_hidden_layers=case.layers,
        num_attention_heads=max(1, case.hidden // 128),
        num_key_value_heads=max(1, case.hidden // 768),
        tie_word_embeddings=True,
    )
    with torch.device(case.device):  # on a GPU random weights take no time
        lm: Any = Qwen2ForCausalLM(config).train()
    lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    use_packed_attention(lm)
    rows = _rows(case)
    forward = ForwardSettings(token_budget=case.tokens, dtype=case.dtype)

    def run() -> None:
        lm.zero_grad(set_to_none=True)
        (_naive_update if case.way == "naive" else _own_update)(lm, rows, forward)

    return run


def _rows(case: Case) -> list[TrainingSample]:
    generator = np.random.default_rng(0)
    count = min(8, case.tokens // 16)
    length = case.tokens // count
    mask = np.arange(length) >= min(128, length // 4)
    return [
        TrainingSample(
            tokens=generator.integers(case.vocabulary, size=length, dtype=np.int32),
            loss_mask=mask,
            advantages=float(generator.choice([-1.0, 1.0])),
            weight=1.0 / (count * int(mask.sum())),
            sampling_logprobs=np.full(int(mask.sum()), -10.0, np.float32),
        )
        for _ in range(count)
    ]


def _own_update(lm: Any, rows: list[TrainingSample], forward: ForwardSettings) -> None:
    accumulate_gradients(lm, rows, forward, LossSettings())


def _naive_update(lm: Any, rows: list[TrainingSample], forward: ForwardSettings) -> None:
    """Update on the same micro-batch with all its logits at once."""
    batch = token_batch(lm, rows)
    with forward.autocast(batch.tokens.device):
        hidden = response_states(lm, batch)
        hidden = hidden if forward.dtype == "float32" else hidden.to(getattr(torch, forward.dtype))
        logprobs, _ = _whole(hidden, lm.get_output_embeddings().weight, batch.targets)
    advantages = flat([row.advantages * row.weight for row in rows], rows, logprobs.device)
    ratio = (logprobs - logprobs.detach()).exp()
    torch.autograd.backward(-torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages).sum())


def fits(case: Case) -> bool:
    """Return whether the naive way fits in the free memory."""
    free = torch.cuda.mem_get_info()[0] if case.device == "cuda" else psutil.virtual_memory().available
    return case.way != "naive" or case.naive_bytes < 0.85 * free


def in_a_process(case: Case) -> Measurement:
    """Measure in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(measure, case).result()


def table(found: Mapping[Case, Measurement | None]) -> Table:
    """Make the printed table; ratios are to the naive way."""
    names = ("what", "tokens", "way", "memory GB", "less by", "seconds", "time ratio", "tokens/s")
    columns = empty_table("Peak memory above inputs and weights, and time", *names, left=3)
    for case, measured in found.items():
        if measured is None:
            columns.add_row(case.what, str(case.tokens), case.way, f"~{case.naive_bytes / 1e9:.0f}", "does not fit")
            continue
        naive = found.get(replace(case, way="naive"))
        columns.add_row(
            case.what,
            str(case.tokens),
            case.way,
            f"{measured.peak_bytes / 1e9:.2f}",
            f"{naive.peak_bytes / measured.peak_bytes:.1f}x" if naive else "",
            f"{measured.seconds:.2f}",
            f"{measured.seconds / naive.seconds:.2f}" if naive else "",
            f"{case.tokens / measured.seconds:.0f}",
        )
    return columns


def main() -> None:
    """Measure every case and print the table."""
    cuda = torch.cuda.is_available()
    parser = benchmark_parser(
        __doc__,
        full=(False, "8,192 and 32,768 tokens"),
        vocabulary=151_936,
        hidden=1536,
        chunk=384,
        threads=(1, "torch threads"),
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=None)
    parser.add_argument("--what", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--ways", nargs="+", choices=WAYS["statistics"], default=WAYS["statistics"])
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--layers", type=int, default=28 if cuda else 1, help="layers of the model that is updated")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if cuda else "cpu")
    parser.add_argument("--repeats", type=int, default=10 if cuda else 1)
    arguments = parser.parse_args()
    sizes = arguments.tokens or ([8192, 32768] if arguments.full else [2048])
    names = ("vocabulary", "hidden", "dtype", "chunk", "layers", "device", "threads", "repeats")
    settings = {name: getattr(arguments, name) for name in names}
    found: dict[Case, Measurement | None] = {}
    for what, tokens in ((what, tokens) for what in arguments.what for tokens in sizes):
        for way in (way for way in WAYS[what] if way in arguments.ways):
            case = Case(what=what, way=way, tokens=tokens, **settings)
            print(f"{what}, {tokens} tokens, {way}", file=sys.stderr)
            found[case] = in_a_process(case) if fits(case) else None
    results = [asdict(case) | (asdict(m) if m else {"seconds": None}) for case, m in found.items()]
    show([table(found)], arguments, results)


if __name__ == "__main__":
    main()
