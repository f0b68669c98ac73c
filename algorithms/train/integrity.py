"""Check that a run's files of record are what was written, before anything is read from them."""

import logging
from typing import Literal

from algorithms.train import manifest
from algorithms.train.run_directory import RunDirectory, checkpoint_path, checkpoint_steps
from algorithms.utils.errors import CheckpointError

_logger = logging.getLogger(__name__)


def check_record(
    run: RunDirectory, step: int | None = None, *, unlisted: Literal["pass", "warn", "refuse"] = "warn"
) -> None:
    """Check the files of record against the manifest.

    Args:
        run: its directory.
        step: of the checkpoint that is believed; None: the newest that is there, or where there is none, of the
            newest commit.
        unlisted: what happens to a run without a manifest, as those of earlier versions are.

    Raises:
        CheckpointError: one does not fit; the line names it, the fault and the ways out.
    """
    steps = checkpoint_steps(run.checkpoints_folder)
    believed = max(steps, default=None) if step is None else step
    found = manifest.fault(run.path, believed)
    if found is None:
        return
    name, trouble = found
    rebuild = f"python -m algorithms.train.rebuild {run.path}"
    if unlisted != "refuse" and not (run.path / manifest.MANIFEST).exists():
        if unlisted == "warn":
            _logger.warning("%s: %s, so that nothing there is verified; fix: %s", run.path / name, trouble, rebuild)
        return
    fitting = [
        one for one in steps if believed is not None and one < believed and manifest.fault(run.path, one) is None
    ]
    resume = f"--resume {checkpoint_path(run.checkpoints_folder, fitting[-1])}, " if fitting else ""
    raise CheckpointError(
        f"{run.path / name}: {trouble}; fix: put back a whole copy of it, {resume}or take the files as they are: "
        f"{rebuild}"
    )
