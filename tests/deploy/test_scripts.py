"""The SLURM script and `make audit`, run with stand-ins for the commands that only a cluster or a network has."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Each notes its arguments. `python -c` ends once as many nodes were started as it is told to wait for. `python -m` is
# the driver, which can be told to wait for a signal.
STAND_IN = """#!/bin/bash
echo "$(basename "$0") $*" >> "$LOG"
case "$(basename "$0") $*" in
  *"--block") exec sleep 1000 ;;
  "python -c "*)
    [[ $DRIVER != lost ]] || exit 1
    until (($(grep -cE "^(ray|srun) " "$LOG") >= $4)); do sleep 0.05; done ;;
  "python -m "*)
    echo "RAY_ADDRESS $RAY_ADDRESS" >> "$LOG"
    echo "token $RAY_AUTH_MODE ${#RAY_AUTH_TOKEN}" >> "$LOG"
    trap 'exit 130' TERM
    [[ $DRIVER == wait ]] || exit "$DRIVER"
    touch "$LOG.waiting"
    while true; do sleep 0.05; done ;;
esac
"""


@pytest.fixture
def slurm(tmp_path):
    """Start the script as a job of two nodes; gives the process, and the file with what it called."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("ray", "srun", "scontrol", "python"):
        (commands / name).write_text(STAND_IN)
        (commands / name).chmod(0o755)
    log = tmp_path / "log"
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | {
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
        "LOG": str(log),
        "SLURM_JOB_NAME": "r3-grpo",
        "SLURM_JOB_ID": "17",
        "SLURM_CPUS_PER_TASK": "64",
        "SLURMD_NODENAME": "node1",
    }
    started = []

    def start(driver: str, nodes: int = 2, *settings: str, **more: str) -> "subprocess.Popen[bytes]":
        variables = {"DRIVER": driver, "SLURM_NNODES": str(nodes)} | more
        command = ["bash", str(ROOT / "deploy" / "slurm.sh"), *settings]
        started.append(subprocess.Popen(command, cwd=tmp_path, env=surroundings | variables, start_new_session=True))
        return started[-1]

    yield start, log
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_a_job_starts_ray_on_all_nodes_then_the_run(slurm, tmp_path):
    start, log = slurm
    assert start("0", 2, "run.steps=500").wait(300) == 0
    called = log.read_text().splitlines()
    assert any(line.startswith("ray start --head --port 6379 --num-cpus 64") for line in called)
    (others,) = [line for line in called if line.startswith("srun ")]
    assert "--nodes=1 --ntasks=1 --exclude=node1 ray start --address node1:6379" in others
    (run,) = [line for line in called if line.startswith("python -m ")]
    assert "algorithms.r3_grpo --continue --config configs/deepscaler_r1_1p5b_16gpu.yaml" in run
    assert f"run.dir={tmp_path}/runs run.name=r3-grpo-17 run.restarts=3 run.steps=500" in run
    assert "RAY_ADDRESS node1:6379" in called and "token token 64" in called
    assert not [line for line in called if line.startswith("scontrol")]


def test_one_node_needs_no_srun(slurm):
    start, log = slurm
    assert start("0", 1).wait(300) == 0
    assert not [line for line in log.read_text().splitlines() if line.startswith("srun ")]


def test_a_node_that_never_joins_ends_the_job_with_a_line(slurm, capfd):
    start, log = slurm
    assert start("lost", 2, NODES_WAIT_S="0").wait(300) == 1
    assert "error: not all of 2 nodes joined Ray at node1:6379 within 0 s" in capfd.readouterr().err
    assert "python -m" not in log.read_text()


def test_a_failed_run_is_not_queued_again(slurm):
    start, log = slurm
    assert start("2").wait(300) == 2
    assert "scontrol" not in log.read_text()


def test_a_notice_reaches_the_run_and_queues_the_job_again(slurm):
    start, log = slurm
    process = start("wait")
    deadline = time.monotonic() + 300
    while not Path(f"{log}.waiting").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)  # to the script alone, as --signal=B: has it
    assert process.wait(300) == 130
    assert log.read_text().splitlines()[-1] == "scontrol requeue 17"


AUDITOR = """#!/bin/bash
case "$*" in
  "pip install "*) ;;
  *constraints.txt) echo "audited constraints.txt" ;;
  *) echo '{{"dependencies": [{{"name": "pip", {answer}}}]}}' ;;
esac
"""


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ('"version": "19.0", "vulns": [{"id": "PYSEC-2021-437"}]', "audited constraints.txt"),
        ('"version": "19.0", "vulns": []', "audit: not done, no database of advisories answers"),
        ('"skip_reason": "not found"', "audit: not done, no database of advisories answers"),
    ],
)
def test_an_audit_is_done_where_a_database_of_advisories_answers(tmp_path, answer, said):
    auditor = tmp_path / "python"
    auditor.write_text(AUDITOR.format(answer=answer))
    auditor.chmod(0o755)
    command = ["make", "--no-print-directory", "-o", "install", "audit", f"RUN={auditor}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, said), done.stderr
