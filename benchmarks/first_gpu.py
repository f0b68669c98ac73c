"""Try on the first GPU what a GPU makes different, step after step, with one table at the end.

    python -m benchmarks.first_gpu --json first_gpu.json                  # a random model of 1.5 billion parameters
    python -m benchmarks.first_gpu --json first_gpu.json --budget-s 540   # stop in time …
    python -m benchmarks.first_gpu --json first_gpu.json --budget-s 540 --resume   # … and continue later
    python -m benchmarks.first_gpu --json first_gpu.json --resume --report first_gpu.md   # to paste into an issue
    python -m benchmarks.first_gpu --list

Each step has a process and a time limit of its own. One that hangs, crashes or finds incorrect numbers is a row of the
table with its last lines; a log file has all of them. A step that cannot run here says why. Without a
GPU the steps that have a small form run on the CPU with a tiny model: they show that the steps work, their figures
say nothing of a GPU. Nothing comes from the Hub. Ends with 1 if a step failed, 2 for a wrong argument.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gpu_steps.catalog import MACHINE, STEPS
from benchmarks.gpu_steps.pasted import pasted
from benchmarks.gpu_steps.process import run_step
from benchmarks.gpu_steps.step import Job, Machine, Step

SECONDS_BETWEEN_LINES = 10.0


class Ticker:
    """Shows the step that runs, with its seconds: redrawn in place on a terminal, else a line now and then."""

    def __init__(self, total: int) -> None:
        self._total, self._prefix = total, ""
        self._terminal = sys.stderr.isatty()
        self._last = 0.0

    def begin(self, number: int, step: Step) -> None:
        """Print the name of the step that starts."""
        self._prefix, self._last = f"[{number}/{self._total}] {step.name}", time.monotonic()
        if not self._terminal:
            print(f"{self._prefix}: {step.what} (at most {step.limit_s:g} s)", file=sys.stderr, flush=True)

    def tick(self, seconds: float, line: str) -> None:
        """Print its seconds and the last line of its log."""
        now = time.monotonic()
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            print(f"\r{f'{self._prefix} {seconds:.0f} s  {line}'[:width]:{width}}", end="", file=sys.stderr, flush=True)
        elif now - self._last >= SECONDS_BETWEEN_LINES:
            self._last = now
            print(f"{self._prefix} {seconds:.0f} s  {line}", file=sys.stderr, flush=True)

    def end(self, number: int, step: Step, row: Mapping[str, Any]) -> None:
        """Print how it ended."""
        clear = "\r" + " " * (shutil.get_terminal_size().columns - 1) + "\r" if self._terminal else ""
        took = f" after {row['seconds']:.0f} s" if "seconds" in row else ""
        text = f"{clear}[{number}/{self._total}] {step.name} {row['status']}{took}: {row['summary']}"
        print(text, file=sys.stderr, flush=True)


def table_of(rows: Mapping[str, Mapping[str, Any]], order: Sequence[str], width: int = 120) -> str:
    """Return the table: step, how it ended, seconds, and what it found or why it did not run."""
    names = [name for name in order if name in rows]
    first = max([len("step"), *map(len, names)])
    second = max([len("ended"), *(len(rows[name]["status"]) for name in names)])
    indent = first + second + 12
    lines = [f"{'step':{first}}  {'ended':{second}}  {'seconds':>7} | found, or why not"]
    lines.append("-" * width)
    for name in names:
        row = rows[name]
        seconds = f"{row['seconds']:.0f}" if "seconds" in row else ""
        text = textwrap.wrap(row["summary"], max(30, width - indent), break_long_words=False) or [""]
        lines.append(f"{name:{first}}  {row['status']:{second}}  {seconds:>7} | {text[0]}")
        lines += [f"{'':{indent - 3}} | {part}" for part in text[1:]]
    return "\n".join(lines)


# What a resumed run does not do again.
SETTLED = ("ok", "wrong", "failed", "timed out")
SIZES = ("tiny", "1.5b")


class UsageError(Exception):
    """An invalid argument, in one line."""


class Report:
    """The rows so far, in the file that a later call resumes."""

    def __init__(self, path: Path | None, resume: bool) -> None:
        self.path = path
        self.rows: dict[str, dict[str, Any]] = {}
        self.machine: dict[str, Any] = {}
        self.size = ""
        if not resume:
            if path is not None and path.exists():
                raise UsageError(f"--json: {path} exists; continue it with --resume, or name another file")
            return
        if path is None:
            raise UsageError("--resume: there is nothing to resume without --json FILE")
        if path.exists():
            try:
                stored = json.loads(path.read_text(encoding="utf-8"))
                self.rows, self.machine, self.size = stored["steps"], stored["machine"], stored["model_size"]
            except (KeyError, TypeError, ValueError) as error:
                raise UsageError(f"--resume: {path} is no file of this command ({error})") from error

    def on(self, machine: Machine, size: str) -> None:
        """Record what the rows are measured on; raise UsageError if the file's rows are of something else."""
        found = asdict(machine)
        if self.size and (self.size, self.machine["gpus"]) != (size, list(machine.gpus)):
            raise UsageError(
                f"--resume: {self.path} is of {self.machine['gpus'] or 'no GPU'} and --model-size {self.size}, this is "
                f"{list(machine.gpus) or 'no GPU'} and {size}; give another --json FILE"
            )
        self.machine, self.size = found, size

    def add(self, step: Step, row: Mapping[str, Any]) -> None:
        """Add a row and write the file."""
        self.rows[step.name] = {"what": step.what, **row}
        if self.path is None:
            return
        order = [step.name for step in STEPS]
        rows = dict(sorted(self.rows.items(), key=lambda row: order.index(row[0]) if row[0] in order else len(order)))
        content = {"model_size": self.size, "machine": self.machine, "steps": rows}
        partial = self.path.with_name(f"{self.path.name}.partial")
        partial.write_text(json.dumps(content, indent=1, default=float), encoding="utf-8")
        partial.replace(self.path)


def run(steps: Sequence[Step], report: Report, *, size: str | None, budget_s: float, folder: Path, logs: Path) -> None:
    """Run the steps one after another, and report each row at once."""
    deadline = time.monotonic() + budget_s if budget_s else float("inf")
    os.makedirs(logs, exist_ok=True)
    ticker = Ticker(len(steps))
    described = run_step(MACHINE, Job("tiny", "cpu", str(folder)), logs / "machine.log")
    if described["status"] != "ok":
        raise UsageError(f"this machine cannot be described: {described['summary']} ({logs / 'machine.log'})")
    machine = Machine(**{name: described["figures"][name] for name in ("gpus", "gpu_gib", "facts")})
    machine = Machine(tuple(machine.gpus), machine.gpu_gib, machine.facts)
    chosen = size or ("1.5b" if machine.gpus else "tiny")
    if chosen != "tiny" and not machine.gpus:
        raise UsageError(f"--model-size: {chosen} needs a GPU, CUDA sees none; fix: --model-size tiny")
    report.on(machine, chosen)
    job = Job(chosen, machine.device, str(folder))
    for number, step in enumerate(steps, 1):
        if report.rows.get(step.name, {}).get("status") in SETTLED:
            continue
        if step is MACHINE:
            row = described
        elif reason := step.needs.unmet(machine, chosen):
            row = {"status": "skipped", "summary": reason}
        elif (left := deadline - time.monotonic()) < step.limit_s:
            row = {"status": "left", "summary": _out_of_time(step, left, budget_s)}
        else:
            log = logs / f"{step.name}.log"
            ticker.begin(number, step)
            row = run_step(step, job, log, ticker.tick) | {"log": str(log)}
        ticker.end(number, step, row)
        report.add(step, row)


def _out_of_time(step: Step, left: float, budget_s: float) -> str:
    if step.limit_s > budget_s:
        return f"may take {step.limit_s:g} s: raise --budget-s"
    return f"may take {step.limit_s:g} s, {max(0, int(left))} s are left: continue with --resume"


def chosen_steps(names: str | None) -> list[Step]:
    """Return the steps of these names, separated by commas; all of them for None.

    Raises:
        UsageError: there is no such step.
    """
    if names is None:
        return list(STEPS)
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = sorted(set(wanted) - {step.name for step in STEPS})
    if unknown or not wanted:
        raise UsageError(f"--steps: there is no step {', '.join(unknown or [repr(names)])}; --list shows them")
    return [step for step in STEPS if step.name in wanted]


def listing() -> Iterator[str]:
    """Yield a line for each step: name, longest time, what it needs, what it does."""
    for step in STEPS:
        needs = [f"{step.needs.gpus} GPU" if step.needs.gpus else "", *step.needs.modules]
        yield f"{step.name:24}{step.limit_s:>5g} s  {step.what} ({', '.join(filter(None, needs)) or 'CPU or GPU'})"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the steps and print the table; 1 if one failed, 2 for a wrong argument, 130 if interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", help="names, separated by commas; default: all")
    parser.add_argument("--list", action="store_true", help="print the steps and end")
    parser.add_argument("--model-size", choices=SIZES, help="of the random model; default: 1.5b with a GPU, else tiny")
    parser.add_argument("--budget-s", type=float, default=0, help="seconds in all; start no step that may end later")
    parser.add_argument("--json", type=Path, help="write every number here, after each step")
    parser.add_argument("--resume", action="store_true", help="keep the rows of the --json file, run the other steps")
    parser.add_argument("--report", type=Path, help="write machine, verdicts and figures here, without host and user")
    parser.add_argument("--logs", type=Path, help="folder of the steps' logs; default: beside the --json file")
    arguments = parser.parse_args(argv)
    if arguments.list:
        print("\n".join(listing()))
        return 0
    logs = arguments.logs or (
        arguments.json.with_suffix(".logs") if arguments.json else Path(tempfile.mkdtemp(prefix="first_gpu-"))
    )
    interrupted = False
    try:
        steps, report = chosen_steps(arguments.steps), Report(arguments.json, arguments.resume)
        with tempfile.TemporaryDirectory(prefix="first_gpu-") as folder:
            sizes = {"size": arguments.model_size, "budget_s": arguments.budget_s}
            run(steps, report, folder=Path(folder), logs=logs, **sizes)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        interrupted = True
    order = [step.name for step in STEPS]
    print(table_of(report.rows, order))
    if arguments.report and report.machine:
        arguments.report.write_text(pasted(report.machine, report.size, report.rows, order), encoding="utf-8")
        print(f"to paste into an issue: {arguments.report}")
    print(f"logs: {logs}")
    failed = any(row["status"] in ("wrong", "failed", "timed out") for row in report.rows.values())
    return 130 if interrupted else int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
