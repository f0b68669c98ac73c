"""Sleep, wake-up and weight transfer on a GPU, with a random model of the shape of DeepSeek-R1-Distill-Qwen-1.5B.

    python -m benchmarks.gpu                       # one GPU of 80 GB; ends with 2 where there is none
    python -m benchmarks.gpu --layers 4 --json FILE

Layouts: `one process` has engine and learner in the driver; `ipc` and `object_store` have one of each in actors on one
GPU; `nccl`, with two GPUs, has them on one each. Each is a training run of the embedded problems through the library's
own algorithm: after a step that starts everything up, every further step is measured. A layout has a process of its
own. Memory is what is taken of the first GPU, all processes together; it is read between the stages of a step.
"""

import argparse
import json
import logging
import multiprocessing
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.table import Table

_SHARED: Mapping[str, Any] = MappingProxyType(
    {
        "runners": {"num_env_runners": 1, "num_gpus_per_env_runner": 0.51, "sleep_while_training": True},
        "learners": {"num_learners": 1, "num_gpus_per_learner": 0.49},
    }
)
LAYOUTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "one process": {
            "runners": {"sleep_while_training": True},
            "learners": {"num_gpus_per_learner": 1},
        },
        "ipc": {**_SHARED, "way": "ipc"},
        "object_store": {**_SHARED, "way": "object_store"},
        "nccl": {
            "runners": {"num_env_runners": 1, "num_gpus_per_env_runner": 1},
            "learners": {"num_learners": 1, "num_gpus_per_learner": 1},
            "way": "nccl",
            "gpus": 2,
        },
    }
)


def make_model(folder: str, layers: int) -> None:
    """Save random weights with the embedded model's tokenizer, whose ids are a part of the vocabulary."""
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    from algorithms.models.names import resolve_model

    config = Qwen2Config(
        vocab_size=151_936,
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=layers,
        num_attention_heads=12,
        num_key_value_heads=2,
        max_position_embeddings=131_072,
        tie_word_embeddings=False,
    )
    with torch.device("cuda"):
        model: Any = Qwen2ForCausalLM(config)  # typed so that `to(dtype)` is refused
    model.to(torch.bfloat16)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(resolve_model("embedded:tiny")).save_pretrained(folder)


def measure(layout: str, folder: str, steps: int) -> dict[str, Any]:
    """Seconds and memory of a layout's steps; runs in a process of its own."""
    import ray

    from algorithms.grpo.config import GRPOConfig

    settings = LAYOUTS[layout]
    ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    algorithm: Any = (
        GRPOConfig()
        .environment("r3env/Math-v0", env_config={"data": "embedded:train", "instruction": ""})
        .rl_module(model=folder, dtype="bfloat16", gradient_checkpointing=True)
        .env_runners(
            engine="vllm",
            dtype="bfloat16",
            max_response_tokens=256,
            gpu_memory_utilization=0.45,
            weight_transfer=settings.get("way", "auto"),
            vllm={"max_model_len": 1024},
            **settings["runners"],
        )
        .learners(**settings["learners"])
        .training(group_size=8, queries_per_step=8)
        .build_algo()
    )
    try:
        algorithm.train()
        return {"layout": layout, "steps": [_step(algorithm) for _ in range(steps)]}
    finally:
        algorithm.stop()
        ray.shutdown()


def _step(algorithm: Any) -> dict[str, float]:
    """One training step; the memory of the GPU is read between its stages."""
    taken: dict[str, float] = {}
    inner = algorithm.run_stage

    def run_stage(stage: Any, *arguments: Any) -> Any:
        result = inner(stage, *arguments)
        taken[stage.__name__] = _taken_gb()
        return result

    algorithm.run_stage = run_stage
    try:
        algorithm.train()
    finally:
        del algorithm.run_stage
    record = algorithm.batch.record
    return {
        "sleep_s": record["time/sleep_engines"],
        "wake_and_push_s": record["time/sync_weights"],
        "generating_gb": taken["collect_rollouts"],
        "asleep_gb": taken["sleep_engines"],
        "updated_gb": taken["update_policy"],
        "awake_gb": taken["sync_weights"],
        "logp_mismatch_max": record["policy/logp_mismatch_max"],
    }


def _taken_gb() -> float:
    import torch

    free, total = torch.cuda.mem_get_info(0)
    return (total - free) / 1e9


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every layout that the GPUs allow; 2 where there is none."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    import torch

    gpus = torch.cuda.device_count()
    chosen = [layout for layout in arguments.layouts if LAYOUTS[layout].get("gpus", 1) <= gpus]
    if not chosen:
        print(f"benchmarks.gpu needs a GPU (nccl: two); this machine has {gpus}", file=sys.stderr)
        return 2
    spawn = multiprocessing.get_context("spawn")
    results = []
    with tempfile.TemporaryDirectory() as folder:
        with ProcessPoolExecutor(1, mp_context=spawn) as process:
            process.submit(make_model, folder, arguments.layers).result()
        for layout in chosen:
            with ProcessPoolExecutor(1, mp_context=spawn) as process:
                results.append(process.submit(measure, layout, folder, arguments.steps).result())
    _show(results, torch.cuda.get_device_name(0))
    if arguments.json:
        arguments.json.write_text(json.dumps({"gpu": torch.cuda.get_device_name(0), "results": results}, indent=1))
    return 0


def _show(results: Sequence[Mapping[str, Any]], gpu: str) -> None:
    table = Table(title=gpu)
    columns = list(results[0]["steps"][0])
    for column in ("layout", *columns):
        table.add_column(column)
    for result in results:
        medians = (statistics.median(step[column] for step in result["steps"]) for column in columns)
        table.add_row(result["layout"], *(f"{value:.3g}" for value in medians))
    Console().print(table)


if __name__ == "__main__":
    raise SystemExit(main())
