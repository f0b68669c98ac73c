"""Any encoding, closed streams and readers that leave end no command."""

import pytest

from tests.odd_machines.conftest import SMALL, assert_complete

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
R3 = ("-m", "algorithms.r3_grpo")


@pytest.mark.parametrize(
    ("variables", "times"), [(ASCII, b"\\xd7"), ({"PYTHONIOENCODING": "latin-1"}, b"\xd7")], ids=["ascii", "latin-1"]
)
def test_a_check_writes_what_the_encoding_has(start, variables, times):
    done = start('"$@"', *R3, "--check", **variables)
    assert done.returncode == 0, done.stderr
    assert times in next(line for line in done.stdout.splitlines() if line.startswith(b"step "))


@pytest.mark.parametrize(
    ("module", "closed"),
    [("algorithms.grpo", "<&- >&- 2>&-"), ("algorithms.sft", "2>&-"), ("r3env.inspect", "<&- >&-")],
)
def test_closed_streams_are_no_error(start, module, closed):
    done = start(f'"$@" {closed}', "-m", module, "--help")
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_closed_descriptor_is_no_file_s(start, tmp_path):
    text = "import sys; from r3env.streams import guard_streams; guard_streams(); f = open(sys.argv[1], 'w'); "
    done = start('"$@" >&- 2>&-', "-c", text + "print('said', file=sys.stderr); print('printed')", str(tmp_path / "f"))
    assert done.returncode == 0
    assert (tmp_path / "f").read_text() == ""


def test_a_process_that_is_started_has_streams_as_well(start):
    text = "import subprocess, sys; from r3env.streams import guard_streams; guard_streams(); "
    child = "import os; [os.fstat(number) for number in range(3)]"
    text += f"sys.exit(subprocess.run([sys.executable, '-c', {child!r}]).returncode)"
    assert start('"$@" <&- >&- 2>&-', "-c", text).returncode == 0


def test_without_a_buffer_nothing_is_held_back(start):
    text = (
        "import os, sys; from r3env.streams import guard_streams; guard_streams(); sys.stdout.write('a'); os._exit(0)"
    )
    assert start('"$@"', "-u", "-c", text).stdout == b"a"


def test_a_reader_that_leaves_ends_nothing(start):
    done = start('"$@" | head -1', *R3, "--help")
    assert done.returncode == 0 and done.stderr == b"", "pipefail would show a failure of the command"
    assert done.stdout.startswith(b"usage: ")


def test_a_result_that_the_disk_has_no_room_for_is_an_error(start):
    done = start('"$@" >/dev/full', *R3, "--help")
    assert done.returncode == 1
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("error: No space left on device (")


def test_a_log_that_the_disk_has_no_room_for_is_lost(start):
    text = "import os, sys; from r3env.streams import guard_streams; guard_streams(); print('x', file=sys.stderr)"
    assert start('"$@" 2>/dev/full', "-c", text).returncode == 0


@pytest.mark.slow
def test_a_run_in_an_ascii_locale_whose_readers_leave_is_completed(start, tmp_path):
    done = start('"$@" <&- 2>&1 | head -1', *R3, *SMALL, f"run.dir={tmp_path}", "run.name=left", **ASCII)
    assert done.returncode == 0, "pipefail would show a failure of the command"
    assert done.stdout.startswith(b"run directory: ") and done.stdout.count(b"\n") == 1
    assert_complete(tmp_path / "left")


def test_what_the_locale_cannot_write_as_a_path_is_one_line(start, tmp_path):
    done = start('"$@"', *R3, "--check", f"run.dir={tmp_path}/größe", **ASCII)
    (line,) = done.stderr.decode().splitlines()
    assert done.returncode == 2 and "PYTHONUTF8=1" in line
