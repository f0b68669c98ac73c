"""From run directories to a file."""

from collections.abc import Sequence
from pathlib import Path

from algorithms.report.content import content
from algorithms.report.errors import ReportError
from algorithms.report.page import page
from algorithms.report.run_data import read_runs
from algorithms.report.selection import Most
from algorithms.runs.json_files import plain, write_text

DEFAULT_NAME = "report.html"


def write_report(paths: Sequence[Path], out: Path | None, most: Most) -> Path:
    """Write the page of some runs; a file of that name is replaced whole.

    Returns:
        The file: `out`, or else `report.html` in the first run.

    Raises:
        ReportError: a folder is no run or holds what cannot be read, or the file cannot be written.
    """
    runs = read_runs(paths)
    file = out or runs[0].directory.path / DEFAULT_NAME
    title = ", ".join(run.label for run in runs)
    text = page(plain(content(runs, most)), title)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, text)
    except OSError as error:
        raise ReportError(f"--out: {file} cannot be written ({error.strerror}); fix: name another file") from error
    return file
