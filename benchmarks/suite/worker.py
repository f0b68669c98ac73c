"""One base and all its runs in one process, which imports and starts everything once."""

import contextlib
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from algorithms.train.metrics_file import drop_torn_line
from algorithms.utils.errors import RunError
from benchmarks.ablation.learned import cpu_until, learned
from benchmarks.ablation.plan import CONFIGS, Job
from benchmarks.ablation.stored import State, state
from benchmarks.suite import protocol as registered
from benchmarks.suite.bases import Made, Spec, make
from benchmarks.suite.jobs import Planned, job, key_of
from benchmarks.suite.protocol import Protocol


def work(spec: Spec, runs: Sequence[Planned], protocol: Protocol, digest: str, out: Path, records: Path) -> None:
    """Make the base if necessary, and every run that has no record yet; resume an interrupted one.

    Args:
        spec: the base.
        runs: of this base.
        protocol: of the suite.
        digest: its SHA-256.
        out: gets bases and runs.
        records: a line is added to it for every run that ends.

    Raises:
        RunError: the base has no checkpoint at a difficulty.
    """
    done = {key_of(record) for record in stored(records)}
    missing = [run for run in runs if run.key not in done]
    if not missing:
        return
    ran = commit()
    folder = out / "bases" / spec.name
    made = make(spec, protocol.recipe, protocol.filter, folder, wanted=protocol.difficulties)
    for run in missing:
        if run.difficulty in made.taken:
            one = job(run, protocol, folder, out / "runs" / spec.name / run.difficulty)
            train(one)
            append(records, record(run, one, made, digest, ran))
            shutil.rmtree(one.folder / "checkpoints")
    if missed := [run.difficulty for run in missing if run.difficulty not in made.taken]:
        place = f"{spec.label}:{missed[0]}"
        raise RunError(
            f"{spec.label}: pass@1 passed over {missed[0]}; fix: name {place} under excluded in protocol.yaml, and say "
            "so under changes"
        )


def train(one: Job) -> None:
    """Train, or resume; print to the run's log."""
    from algorithms.config.loading import load
    from algorithms.preflight.check import validate_start
    from algorithms.train import loop
    from algorithms.train.resume import StoredRun

    now = state(one)
    if now is State.FINISHED:
        return
    for file in (one.settings_file, one.log):
        file.parent.mkdir(parents=True, exist_ok=True)
    one.settings_file.write_text(one.yaml, encoding="utf-8")
    with one.log.open("a", encoding="utf-8") as log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
        config_class = CONFIGS[one.algorithm]
        if now is State.BEGUN:
            with StoredRun.open(one.folder, one.algorithm, to_train=True) as begun:
                config, run = load(begun.directory.config_file, [], config_class)
                loop.resume(begun, config, run, name=one.algorithm)
            return
        config, run = load([one.settings_file], [], config_class)
        validate_start(config)
        loop.train(config, run, name=one.algorithm)


def record(run: Planned, one: Job, made: Made, digest: str, ran: str) -> dict[str, Any]:
    """Return the record of a finished run; `ran` is the commit of its code."""
    found = learned(one)
    steps, final = found.held_out.steps, found.final
    return {
        "phase": run.phase,
        "task": run.spec.task,
        "difficulty": run.difficulty,
        "skill": run.spec.skill,
        "base": run.spec.replicate,
        "arm": run.arm,
        "seed": one.seed,
        "lr": run.lr,
        "curve": [
            {"step": int(step), "tokens": int(tokens), "cpu_s": round(cpu, 3), "pass@1": float(accuracy)}
            for step, tokens, cpu, accuracy in zip(
                steps,
                found.held_out.tokens,
                cpu_until(found.training, steps),
                found.held_out.values["pass@1"],
                strict=True,
            )
        ],
        "final": {
            "pass@1": final["pass@1"],
            "pass@8": final["pass@8"],
            "entropy": float(found.training.values["policy/entropy"][-1]),
            "truncated": final["truncated"],
        },
        "wall_s": found.wall_s,
        "supervised_steps": made.taken[run.difficulty],
        "settings_hash": found.settings_hash,
        "protocol": digest,
        "commit": ran,
    }


def commit() -> str:
    """Return the commit of the code, with suffix `-dirty` if code differs from it; "unknown" outside a clone.

    Unlike `code_commit` it leaves data out: the records, to which every run adds, are files of the clone.
    """
    head, changed = (
        subprocess.run(
            ["git", "-C", str(registered.FOLDER.parent.parent), *command], capture_output=True, text=True, check=False
        ).stdout.strip()
        for command in (["rev-parse", "HEAD"], ["status", "--porcelain", "-uno", "--", "*.py", "*.yaml"])
    )
    return (head or "unknown") + ("-dirty" if changed else "")


def append(file: Path, one: dict[str, Any]) -> None:
    """Append a line safely beside other processes; drop half a line of a killed one first."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{file}.lock"):
        drop_torn_line(file)
        with file.open("ab") as out:
            out.write(json.dumps(one).encode() + b"\n")


def stored(file: Path) -> list[dict[str, Any]]:
    """Read the complete lines of a file of records."""
    if not file.is_file():
        return []
    found = []
    for line in file.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return found
