"""A tensor of one process, read and written by another through CUDA IPC."""

import multiprocessing
import time
from typing import Any

from benchmarks.gpu_steps.step import Job, Outcome

MIB = 1024


def round_trip(job: Job) -> Outcome:
    """Export a tensor, have another process check and change it in place, and see the change here."""
    import torch
    from torch.multiprocessing.reductions import reduce_tensor

    tensor = torch.arange(MIB * 2**20 // 4, dtype=torch.int32, device="cuda")
    expected = int(tensor.sum(dtype=torch.int64))
    torch.cuda.synchronize()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    other = context.Process(target=_read_and_add, args=(theirs,), daemon=True)
    other.start()
    if not ours.poll(120):
        raise TimeoutError("the other process did not start")
    ours.recv()
    started = time.perf_counter()
    ours.send(reduce_tensor(tensor))
    if not ours.poll(120):
        raise TimeoutError("the other process did not answer")
    answer: dict[str, Any] = ours.recv()
    seconds = time.perf_counter() - started
    if "error" in answer:
        return Outcome("no CUDA IPC here", answer, [answer["error"]])
    changed = int(tensor.sum(dtype=torch.int64)) - expected
    ours.send(None)
    other.join(30)
    wrong = []
    if answer["sum"] != expected:
        wrong.append(f"the other process read a sum of {answer['sum']}, not {expected}")
    if changed != len(tensor):
        wrong.append("what the other process wrote did not arrive")
    gb_per_s = MIB * 2**20 / answer["copy_s"] / 1e9
    summary = f"opened in {answer['open_s'] * 1e3:.0f} ms, {MIB} MiB copied at {gb_per_s:,.0f} GB/s"
    return Outcome(summary, {**answer, "seconds": seconds, "gb_per_s": gb_per_s}, wrong)


def _read_and_add(pipe: Any) -> None:
    import torch

    torch.zeros(1, device="cuda")
    pipe.send("ready")
    rebuild, arguments = pipe.recv()
    try:
        started = time.perf_counter()
        shared = rebuild(*arguments)
        opened = time.perf_counter()
        shared.clone()
        torch.cuda.synchronize()
        started_copy = time.perf_counter()
        copied = shared.clone()
        torch.cuda.synchronize()
        copy_s = time.perf_counter() - started_copy
        total = int(copied.sum(dtype=torch.int64))
        shared.add_(1)
        torch.cuda.synchronize()
    except Exception as error:  # the parent reports it
        pipe.send({"error": f"{type(error).__name__}: {error}"})
        return
    pipe.send({"sum": total, "open_s": opened - started, "copy_s": copy_s})
    del shared
    pipe.recv()  # the memory stays until the parent has looked
