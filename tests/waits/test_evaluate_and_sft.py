"""`algorithms.evaluate` and `algorithms.sft` end as training: on a signal, and when Ray's control process is lost."""

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from tests.sft.conftest import BASE, solved, write

from .conftest import LIMIT_S, SHORTEN, Run, _title
from .test_ray_lost import CONTROL, SHUTDOWN

pytestmark = pytest.mark.slow

COMMAND = f"""{SHORTEN}
command = importlib.import_module(os.environ["COMMAND"])
from algorithms.train.stopping import call_and_leave

call_and_leave(command.main)
"""
LONG = ["env_runners.num_env_runners=1", "env_runners.max_num_seqs=1", "evaluation.limit=50"]
ENGINE = "EnvRunner"  # in the title of the actor that answers


class Answering(Run):
    """A command whose engine, an actor, is answering problems."""

    def __init__(self, folder: Path, command: str, limits: Sequence[tuple[str, str, float]]) -> None:
        self.folder = folder / "run-sft"
        arguments = {
            "algorithms.evaluate": [
                *("--model=embedded:tiny", "--config=configs/quickstart.yaml", "--data=embedded:heldout"),
                *("--samples=200", f"--out={folder / 'out'}", *LONG),
            ],
            "algorithms.sft": [*BASE, *LONG, "evaluation.samples=200", f"run.dir={folder}", "run.name=run"],
        }[command]
        if command == "algorithms.sft":
            arguments.append(f"environment.data={write(folder / 'solved.jsonl', solved())}")
        self.begin(folder / "shortened", limits, COMMAND, *arguments, COMMAND=command)
        assert self.process.stderr is not None
        seen = []
        while "started in" not in (line := self.process.stderr.readline()):
            assert line, seen
            seen.append(line)
        self.shorten()
        time.sleep(2.0)  # the first problems
        self.family = psutil.Process(self.process.pid).children(recursive=True)
        assert any(ENGINE in _title(child) for child in self.family)


@pytest.fixture
def answering(tmp_path) -> Iterator[Callable[..., Answering]]:
    begun = []

    def begin(command: str, *limits: tuple[str, str, float]) -> Answering:
        begun.append(Answering(tmp_path, command, limits))
        return begun[-1]

    yield begin
    for command in begun:
        command.clean()


def test_another_signal_ends_the_way_out_at_once(answering):
    """Ray's control process is stopped: without another signal each wait for it would be longer than the test."""
    command = answering(
        "algorithms.evaluate", (*SHUTDOWN, 10.0 * LIMIT_S), ("algorithms.train.ray_watch", "SILENT_S", 10.0 * LIMIT_S)
    )
    command.child(CONTROL).send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + LIMIT_S
    while command.process.poll() is None and time.monotonic() < deadline:
        command.process.send_signal(signal.SIGTERM)
        time.sleep(1.0)
    code, errors, _ = command.end()
    assert code == 130 and "interrupted" in errors and "Traceback" not in errors, errors
    assert not command.left()


def test_a_command_whose_ray_is_lost_ends_in_one_line(answering):
    command = answering(
        "algorithms.sft",
        (*SHUTDOWN, 1.0),
        ("algorithms.train.ray_watch", "SILENT_S", 8.0),
        ("algorithms.train.ray_watch", "SAVING_S", 2.0),
    )
    command.child(CONTROL).send_signal(signal.SIGSTOP)
    code, errors, _ = command.end()
    assert code == 1 and "Traceback" not in errors, errors
    line = "error: Ray's control process does not answer: it died or is stopped; fix: --resume "
    assert errors.splitlines()[-1] == f"{line}{command.folder}"
    assert not command.left()
