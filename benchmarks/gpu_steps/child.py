"""`python -m benchmarks.gpu_steps.child JOB.json RESULT.json`: run one step in this process."""

import importlib
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from benchmarks.gpu_steps.step import CannotRun, Job

# Modules whose absence is a mistake of this repository, and no property of the machine.
_OURS = ("algorithms", "benchmarks", "r3env", "examples", "tests")


def main() -> None:
    """Write what the step found, or why it could not run, or its error; the log has the traceback."""
    given = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        answer = _run(given["target"], Job(**given["job"]))
    except CannotRun as error:
        answer = {"status": "skipped", "summary": str(error)}
    except ModuleNotFoundError as error:
        traceback.print_exc()
        missing = (error.name or "").partition(".")[0]
        if missing in _OURS:
            answer = _failed(error)
        else:
            answer = {"status": "skipped", "summary": f"needs {missing}, not installed"}
    except Exception as error:  # becomes a row of the table
        traceback.print_exc()
        answer = _failed(error)
    partial = Path(f"{sys.argv[2]}.partial")
    partial.write_text(json.dumps(answer, default=float), encoding="utf-8")
    partial.rename(sys.argv[2])
    sys.stdout.flush()
    os._exit(0)  # engines and Ray leave threads, some of which do not end


def _run(target: str, job: Job) -> dict[str, Any]:
    module, _, function = target.partition(":")
    outcome = getattr(importlib.import_module(module), function)(job)
    found = {"figures": dict(outcome.figures), "wrong": list(outcome.wrong)}
    status = "wrong" if outcome.wrong else "ok"
    return {"status": status, "summary": "; ".join([*outcome.wrong, outcome.summary]), **found}


def _failed(error: Exception) -> dict[str, Any]:
    lines = str(error).strip().splitlines() or [""]
    return {"status": "failed", "summary": f"{type(error).__name__}: {lines[0]}"}


if __name__ == "__main__":
    main()
