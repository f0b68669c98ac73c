"""Steps of the learner alone, without Ray: its benchmarks, the head's chunk, AdamW's kernels, and one sharded rank."""

import gc
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_steps.step import CannotRun, Job, Outcome
from benchmarks.random_models import SHAPES, random_model

GB = 1e9


def tests(job: Job) -> Outcome:
    """Run the tests marked gpu."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "tests").is_dir():
        raise CannotRun("needs a checkout: this installation has no tests")
    command = [sys.executable, "-m", "pytest", "-m", "gpu and not vllm", "-p", "no:cacheprovider", "-rs", "-v"]
    folders = [str(root / "tests" / name) for name in ("learner", "maths", "sharding", "transfer")]
    ended = subprocess.run([*command, *folders], cwd=root, text=True, capture_output=True, check=False)
    print(ended.stdout, ended.stderr)
    last = next((line for line in reversed(ended.stdout.splitlines()) if " in " in line), "no summary")
    summary = last.strip("= ")
    wrong = [] if ended.returncode == 0 else [f"pytest ended with {ended.returncode}"]
    return Outcome(summary, {"exit_code": ended.returncode}, wrong)


def memory_and_time(job: Job) -> Outcome:
    """Measure log-probs, scoring and updates: peak memory and time, chunked and naive, as in `benchmarks.learner`."""
    small, large = (8192, 32768) if job.on_gpu and not job.small else (128, 256)
    found = [_case(job, "update", way, small, 384) for way in ("naive", "chunked")]
    found += [_case(job, what, way, large, 384) for what in ("statistics", "scoring") for way in ("naive", "chunked")]
    found.append(_case(job, "update", "chunked", large, 384))
    return Outcome(_summary_of(found), {"cases": found})


def chunks(job: Job) -> Outcome:
    """Compare the output head's chunk of 384 tokens with 2,048: less traffic for the weight's gradient, more memory."""
    tokens, sizes = (32768, (384, 2048, 4096)) if job.on_gpu and not job.small else (128, (16, 64))
    found = [_case(job, "statistics", "chunked", tokens, chunk) for chunk in sizes]
    parts = [f"chunk {case['chunk']}: {case['seconds']:.3g} s, {case['gb']:.3g} GB" for case in found]
    return Outcome(f"{tokens:,} tokens, {'; '.join(parts)}", {"cases": found})


def _case(job: Job, what: str, way: str, tokens: int, chunk: int) -> dict[str, Any]:
    from benchmarks.learner import Case, fits, in_a_process

    shape = SHAPES[job.size]
    case = Case(
        what,
        way,
        tokens,
        vocabulary=shape["vocab_size"],
        hidden=shape["hidden_size"],
        dtype=job.dtype,
        chunk=chunk,
        layers=shape["num_hidden_layers"],
        device=job.device,
        threads=1,
        repeats=3 if job.on_gpu else 1,
    )
    named = {"what": what, "way": way, "tokens": tokens, "chunk": chunk}
    print(f"{what}, {way}, {tokens} tokens, chunk {chunk}")
    if not fits(case):
        return named | {"seconds": None, "gb": None}
    try:
        measured = in_a_process(replace(case))
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        return named | {"seconds": None, "gb": None}
    return named | {"seconds": measured.seconds, "gb": measured.peak_bytes / GB}


def _summary_of(cases: list[dict[str, Any]]) -> str:
    largest = max(case["tokens"] for case in cases)
    chunked = [case for case in cases if case["tokens"] == largest and case["way"] == "chunked"]
    parts = [
        f"{case['what']} {case['seconds']:.3g} s, {case['gb']:.3g} GB"
        if case["seconds"] is not None
        else f"{case['what']} does not fit"
        for case in chunked
    ]
    return f"{largest:,} tokens, chunked: {'; '.join(parts)}"


def packing(job: Job) -> Outcome:
    """Compare packed micro-batches (flash attention on a GPU) with padded ones, as `benchmarks.packing`."""
    result = Path(job.folder) / "packing.json"
    command = [sys.executable, "-m", "benchmarks.packing", "--device", job.device, "--json", str(result)]
    if job.on_gpu and not job.small:
        command += ["--model", "1.5b", "--rows", "32", "--median-tokens", "4000", "--longest", "32768"]
        command += ["--token-budget", "32768", "--checkpointing", "--repeats", "2", "--lengths", "long tail"]
    else:
        command += ["--rows", "16", "--repeats", "1", "--lengths", "quickstart"]
    subprocess.run(command, check=True)
    figures = json.loads(result.read_text(encoding="utf-8"))
    (one,) = figures
    parts = [f"packed {one['ratio']:.2f} times as fast, scoring {one['scoring_ratio']:.2f}"]
    if one["mfu"] is not None:
        parts.append(f"MFU {one['mfu']:.0%}")
    if one["packed_gib"] is not None:
        parts.append(f"peak {one['packed_gib']:.1f} GiB against {one['padded_gib']:.1f}")
    return Outcome(f"{one['tokens']:,} tokens: {'; '.join(parts)}", {"comparison": one})


def adamw(job: Job) -> Outcome:
    """Compare AdamW's kernels: time, memory above weights, gradients and moments, and equal numbers; 8-bit moments."""
    found: dict[str, dict[str, float]] = {}
    weights = {}
    kernels = ["foreach", "fused"]
    for kernel in kernels + ["8-bit"] * (importlib.util.find_spec("bitsandbytes") is not None):
        found[kernel], weights[kernel] = _adamw(job, kernel)
        gc.collect()
        if job.on_gpu:
            torch.cuda.empty_cache()
    difference = max(float((a - b).abs().max()) for a, b in zip(*(weights[kernel] for kernel in kernels), strict=True))
    parts = [f"{name} {one['seconds']:.3g} s per step" for name, one in found.items()]
    if job.on_gpu:
        parts = [f"{part}, {found[name]['gb']:.2f} GB" for part, name in zip(parts, found, strict=True)]
    # Five steps of 1e-3: kernels that round differently stay far below one of them.
    wrong = [f"kernels differ by {difference:.2g}"] if difference > 1e-4 else []
    summary = f"{'; '.join(parts)}; largest difference of a weight {difference:.2g}"
    return Outcome(summary, {**found, "difference": difference}, wrong)


def _adamw(job: Job, kernel: str) -> tuple[dict[str, float], list[Any]]:
    lm = random_model(job.size, job.device)
    parameters = list(lm.parameters())
    optimizer: torch.optim.Optimizer
    if kernel == "8-bit":
        from algorithms.learner.optimizer import make_adamw  # which wants Gymnasium: this step runs without

        optimizer = make_adamw(parameters, lr=1e-3, weight_decay=0.01, offload=False, eight_bit=True)
    else:
        optimizer = torch.optim.AdamW(parameters, lr=1e-3, foreach=kernel == "foreach", fused=kernel == "fused")
    torch.manual_seed(1)
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()  # the moments are made
    if job.on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if job.on_gpu else 0
    seconds = []
    for _ in range(4):
        started = time.perf_counter()
        optimizer.step()
        if job.on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    above = torch.cuda.max_memory_allocated() - before if job.on_gpu else 0
    first_layer = [p.detach().cpu() for name, p in lm.named_parameters() if ".layers.0." in name]
    return {"seconds": statistics.median(seconds), "gb": above / GB}, first_layer


def sharded(job: Job) -> Outcome:
    """Compare a learner that shards its model (FSDP2; NCCL on a GPU) with one that does not: gradient, time, memory."""
    rows, length = (8, 4096) if job.on_gpu and not job.small else (4, 64)
    found = {}
    for way in ("whole", "sharded"):
        found[way] = _one_step(job, way, rows, length)
        gc.collect()
        if job.on_gpu:
            torch.cuda.empty_cache()
    norms = [one["grad_norm"] for one in found.values()]
    gap = abs(norms[0] - norms[1]) / norms[0]
    wrong = [f"gradient norms {norms[0]:.4g} and {norms[1]:.4g}"] if not gap < 0.02 else []
    parts = [f"{way} {one['seconds']:.3g} s" for way, one in found.items()]
    if job.on_gpu:
        parts = [f"{part}, peak {found[way]['gb']:.1f} GB" for part, way in zip(parts, found, strict=True)]
    summary = f"{rows} rows of {length:,} tokens: {'; '.join(parts)}; gradient norms differ by {gap:.1e}"
    return Outcome(summary, {**found, "gradient_gap": gap}, wrong)


def _one_step(job: Job, way: str, rows: int, length: int) -> dict[str, float]:
    """Measure the second of two gradients; the process group stays for the life of the process."""
    from algorithms.learner.attention import use_packed_attention
    from algorithms.learner.forward import ForwardSettings
    from algorithms.learner.sharding import clip_gradients, shard
    from algorithms.learner.update import accumulate_gradients
    from algorithms.losses.base import LossSettings
    from benchmarks.packing import rows_of

    lm = random_model(job.size, job.device).train()
    lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    use_packed_attention(lm)
    forward = ForwardSettings(token_budget=rows * length, dtype=job.dtype)
    if way == "sharded":
        store = Path(job.folder) / "rendezvous"
        store.unlink(missing_ok=True)
        backend = "nccl" if job.on_gpu else "gloo"
        torch.distributed.init_process_group(backend, init_method=f"file://{store}", rank=0, world_size=1)
        shard(lm, torch.device("cuda:0" if job.on_gpu else "cpu"), dtype=getattr(torch, job.dtype))
        forward = replace(forward, dtype="float32")  # shards are gathered in the type to compute in
    batch = rows_of([length] * rows, lm.config.vocab_size, 0)
    for _ in range(2):
        lm.zero_grad(set_to_none=True)
        if job.on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        started = time.perf_counter()
        accumulate_gradients(lm, batch, forward, LossSettings())
        norm = clip_gradients(lm.parameters(), float("inf"))
        seconds = time.perf_counter() - started
    peak = torch.cuda.max_memory_allocated() if job.on_gpu else 0
    return {"grad_norm": float(norm), "seconds": seconds, "gb": peak / GB}
