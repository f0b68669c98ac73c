"""What learners hold of a model, whole or in shards or as a frozen base with an adapter, and what a step takes.

    python -m benchmarks.sharding --learners 1 2 4

Real processes and a gloo group on this machine's CPU; a random Qwen2 with tied embeddings. The peak is of resident
memory over two optimizer steps, above what the process held before it had a model. Times of processes that share
few cores say little about GPUs; memory and the order of the rows carry over.
"""

import itertools
import re
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
from rich.table import Table
from transformers import Qwen2Config, Qwen2ForCausalLM

from algorithms.learner.batch import TrainingSample
from algorithms.learner.forward import ForwardSettings
from algorithms.learner.model import add_adapter
from algorithms.learner.sharding import clip_gradients, reshard, shard, sum_gradients
from algorithms.learner.update import accumulate_gradients
from algorithms.losses.base import LossSettings
from benchmarks.record import benchmark_parser, show

MIB = 2**20
STEPS = 2
LORA_RANK = 16


@dataclass(frozen=True)
class Way:
    """How the learners hold the model."""

    name: str
    sharded: bool
    lora_rank: int = 0


WAYS = (
    Way("replicas", sharded=False),
    Way("shards", sharded=True),
    Way("shards, LoRA", sharded=True, lora_rank=LORA_RANK),
)


@dataclass(frozen=True)
class Size:
    """Of the model, and of each learner's share of a step."""

    vocabulary: int
    hidden: int
    layers: int
    tokens: int


@dataclass(frozen=True)
class Measured:
    """Bytes of weights, gradients and moments that one learner holds between steps, its peak, and a step's seconds."""

    held: int
    peak: int
    step_s: float


def main() -> None:
    """Print a table."""
    parser = benchmark_parser(
        __doc__,
        learners=[1, 2, 4],
        vocabulary=32768,
        hidden=512,
        layers=8,
        tokens=(512, "tokens of each learner's share of a step"),
    )
    arguments = parser.parse_args()
    size = Size(arguments.vocabulary, arguments.hidden, arguments.layers, arguments.tokens)
    parameters = sum(parameter.numel() for parameter in _model(size, lora_rank=0).parameters())
    title = f"{parameters / 1e6:.0f}M parameters, {size.tokens} tokens per learner, float32"
    table = Table("learners", "hold", "MiB held each", "MiB at the peak", "s per step", title=title)
    figures: list[dict[str, Any]] = []
    for learners, way in itertools.product(arguments.learners, WAYS):
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(_learner, (learners, way, size, folder), learners)
            results = [Measured(**np.load(file, allow_pickle=True).item()) for file in Path(folder).glob("*.npy")]
        figures += [{"learners": learners, "way": way.name, **asdict(result)} for result in results]
        worst = [max(getattr(result, name) for result in results) for name in ("held", "peak", "step_s")]
        table.add_row(str(learners), way.name, f"{worst[0] / MIB:.0f}", f"{worst[1] / MIB:.0f}", f"{worst[2]:.2f}")
    show([table], arguments, figures)


def _learner(rank: int, learners: int, way: Way, size: Size, folder: str) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder}/rendezvous"
    torch.distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=learners)
    before = _resident("VmRSS")
    lm = _model(size, way.lora_rank)
    if way.sharded:
        shard(lm, torch.device("cpu"))
    trained = [parameter for parameter in lm.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far was the whole model's
    started = time.perf_counter()
    for _ in range(STEPS):
        optimizer.zero_grad()
        accumulate_gradients(lm, _rows(size, rank), ForwardSettings(token_budget=size.tokens), LossSettings())
        reshard(lm)
        if learners > 1 and not way.sharded:
            sum_gradients(trained)
        clip_gradients(trained, 1.0)
        optimizer.step()
    step_s = (time.perf_counter() - started) / STEPS
    tensors = [*lm.parameters(), *(parameter.grad for parameter in trained)]
    tensors += [value for state in optimizer.state.values() for value in state.values()]
    measured = Measured(sum(_held(tensor) for tensor in tensors), _resident("VmHWM") - before, step_s)
    np.save(f"{folder}/{rank}.npy", np.array(vars(measured)))
    torch.distributed.destroy_process_group()


def _model(size: Size, lora_rank: int) -> Any:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=4 * size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=8,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    lm = Qwen2ForCausalLM(config)
    if lora_rank:
        add_adapter(lm, rank=lora_rank, alpha=2.0 * lora_rank)
    return lm.train()


def _rows(size: Size, rank: int) -> list[TrainingSample]:
    rng = np.random.default_rng(rank)
    tokens = rng.integers(0, size.vocabulary, size.tokens).astype(np.int32)
    mask = np.arange(size.tokens) > 0
    return [TrainingSample(tokens, mask, 1.0, 1 / size.tokens, None, np.full(mask.sum(), -10.0, np.float32))]


def _held(tensor: Any) -> int:
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return int(local.nbytes)


def _resident(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if found is None:
        raise OSError(f"/proc/self/status has no {name}: this benchmark needs Linux")
    return 1024 * int(found.group(1))


if __name__ == "__main__":
    main()
