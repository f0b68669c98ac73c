"""`python -m benchmarks.first_gpu`: every step is a row of the table, whatever becomes of it."""

import json
import os
import platform
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from benchmarks import first_gpu
from benchmarks.first_gpu import table_of
from benchmarks.gpu_steps.catalog import STEPS
from benchmarks.gpu_steps.pasted import pasted
from benchmarks.gpu_steps.process import ROOT, run_step
from benchmarks.gpu_steps.step import Job, Machine, Needs, Step

JOB = Job("tiny", "cpu", "")
H200 = Machine(("NVIDIA H200",), 139.0, {"driver": "580"})


def step(function, **more):
    return Step(function, "", f"tests.first_gpu.steps:{function}", **more)


@pytest.mark.parametrize(
    ("function", "status", "said"),
    [
        ("works", "ok", "tiny on cpu"),
        ("finds_something_wrong", "wrong", "41 is not 42; measured"),
        ("raises", "failed", "ValueError: a mistake"),
        ("crashes", "failed", "SIGABRT: "),
        ("lacks_a_module", "skipped", "needs a_module_that_nobody_has, not installed"),
        ("cannot_run", "skipped", "the moon is full"),
    ],
)
def test_whatever_becomes_of_a_step_is_its_row(tmp_path, function, status, said):
    row = run_step(step(function, options={"folder": str(tmp_path)}), JOB, tmp_path / "log")
    assert row["status"] == status and said in row["summary"]
    assert row["seconds"] > 0
    assert ("figures" in row) == (status in ("ok", "wrong"))
    if function == "crashes":
        assert "the last words" in (tmp_path / "log").read_text()


def test_a_step_that_hangs_is_ended_at_its_limit_with_all_that_it_started(tmp_path):
    # The step is ended as soon as it has started its child, whenever that is on a busy machine.
    class Started(Exception):
        pass

    def on_tick(seconds, line):
        if "still at it" in line:
            raise Started

    hanging = step("hangs", limit_s=300, options={"folder": str(tmp_path)})
    with pytest.raises(Started):
        run_step(hanging, JOB, tmp_path / "log", on_tick)
    for pid in map(int, (tmp_path / "pids").read_text().split()):
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    row = run_step(replace(hanging, limit_s=0.2), JOB, tmp_path / "log")
    assert row["status"] == "timed out" and "within 0.2 s" in row["summary"]


@pytest.fixture
def described(monkeypatch):
    """A machine as told, whatever this one is."""
    machine = {"gpus": [], "gpu_gib": 0.0, "facts": {}}
    real = first_gpu.run_step

    def run(given, *arguments):
        if given is first_gpu.MACHINE:
            return {"status": "ok", "summary": "", "figures": machine, "seconds": 1.0}
        return real(given, *arguments)

    monkeypatch.setattr(first_gpu, "run_step", run)
    return machine


def test_a_resumed_run_does_what_is_left_and_nothing_twice(tmp_path, monkeypatch, described):
    options = {"folder": str(tmp_path)}
    short = step("works", limit_s=100, options=options)
    long = replace(short, name="long", limit_s=200)
    steps = (short, replace(step("raises"), limit_s=100), long, step("cannot_run", limit_s=100))
    monkeypatch.setattr(first_gpu, "STEPS", steps)
    arguments = ["--json", str(tmp_path / "out.json")]
    assert first_gpu.main([*arguments, "--budget-s", "150"]) == 1, "a step failed"
    rows = json.loads((tmp_path / "out.json").read_text())["steps"]
    assert [row["status"] for row in rows.values()] == ["ok", "failed", "left", "skipped"]
    assert "raise --budget-s" in rows["long"]["summary"]
    assert first_gpu.main([*arguments, "--resume"]) == 1
    rows = json.loads((tmp_path / "out.json").read_text())["steps"]
    assert [row["status"] for row in rows.values()] == ["ok", "failed", "ok", "skipped"]
    assert (tmp_path / "runs").read_text() == "xx", "each of the two ran once"
    assert rows["works"]["figures"] == {"answer": 42}


def test_rows_of_another_machine_are_not_added_to(tmp_path, monkeypatch, described, capsys):
    monkeypatch.setattr(first_gpu, "STEPS", (step("works", options={"folder": str(tmp_path)}),))
    arguments = ["--json", str(tmp_path / "out.json"), "--model-size", "tiny"]
    assert first_gpu.main(arguments) == 0
    assert first_gpu.main(arguments) == 2, "nor overwritten"
    assert "out.json exists; continue it with --resume" in capsys.readouterr().err
    described["gpus"] = ["NVIDIA H200"]
    assert first_gpu.main([*arguments, "--resume"]) == 2
    assert "is of no GPU" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--steps", "nonsense"], "--steps: there is no step nonsense"),
        (["--resume"], "--resume: there is nothing to resume without --json FILE"),
        (["--model-size", "1.5b"], "--model-size: 1.5b needs a GPU"),
    ],
)
def test_a_wrong_argument_is_one_line(described, capsys, arguments, said):
    assert first_gpu.main(arguments) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(said)


def test_what_does_not_run_says_why():
    needs = Needs(gpus=1, gpu_gib=60, modules=("json", "a_module_that_nobody_has"))
    assert needs.unmet(Machine(), "tiny") == "needs a GPU, CUDA sees none"
    assert needs.unmet(H200, "1.5b") == "needs a_module_that_nobody_has, not installed"
    assert needs.unmet(replace(H200, gpu_gib=24.0), "1.5b") == "needs 60 GiB of GPU memory, there are 24"
    assert Needs(gpus=2).unmet(H200, "1.5b") == "needs 2 GPUs, CUDA sees 1"


def test_every_step_can_be_loaded_and_fits_into_ten_minutes(capsys):
    import importlib

    assert first_gpu.main(["--list"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == [each.name for each in STEPS]
    assert len({each.name for each in STEPS}) == len(STEPS)
    for each in STEPS:
        module, _, function = each.target.partition(":")
        assert callable(getattr(importlib.import_module(module), function))
        assert each.limit_s <= 540


def test_the_table_has_every_row_in_order():
    rows = {
        "b": {"status": "skipped", "summary": "needs a GPU"},
        "a": {"status": "ok", "summary": "many words " * 20, "seconds": 61.2},
    }
    lines = table_of(rows, ["a", "b"]).splitlines()
    assert lines[2].startswith("a     ok            61 | many words")
    assert lines[-1].startswith("b     skipped          | needs a GPU")
    assert all(len(line) <= 120 for line in lines)


@pytest.fixture
def run_here(tmp_path, monkeypatch):
    """Run the steps' small forms on this machine's CPU, however long a busy one takes."""
    steps = tuple(replace(step, limit_s=3600) for step in STEPS)
    monkeypatch.setattr(first_gpu, "STEPS", steps)
    monkeypatch.setattr(first_gpu, "MACHINE", steps[0])

    def run(*names):
        path = tmp_path / "out.json"
        files = ["--json", str(path), "--report", str(tmp_path / "out.md")]
        code = first_gpu.main([*files, "--model-size", "tiny", "--steps", ",".join(names)])
        rows = json.loads(path.read_text())["steps"]
        return code, {name: row["status"] for name, row in rows.items()}, rows

    return run


def test_a_machine_without_ray_and_vllm_gets_the_other_rows(tmp_path):
    absent = ("psutil", "ray", "vllm", "rich", "pydantic", "gymnasium", "omegaconf")
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules.update(dict.fromkeys({absent!r}))\n")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    command = [sys.executable, "-m", "benchmarks.first_gpu", "--steps", "machine,learner,rllib,engine"]
    ended = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, text=True, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr
    rows = {line.split()[0]: line for line in ended.stdout.splitlines() if " | " in line}
    assert "ok" in rows["machine"]
    assert "needs psutil, not installed" in rows["learner"]
    assert "needs ray, gymnasium, not installed" in rows["rllib"]
    assert "needs ray, gymnasium, vllm, not installed" in rows["engine"]


def test_steps_run_on_a_cpu_or_say_why_not(run_here, tmp_path, capsys):
    code, statuses, rows = run_here("machine", "ipc", "adamw")
    assert (code, statuses) == (0, {"machine": "ok", "ipc": "skipped", "adamw": "ok"})
    assert rows["adamw"]["figures"]["difference"] < 1e-6
    assert "needs a GPU, CUDA sees none" in capsys.readouterr().out
    report = (tmp_path / "out.md").read_text()
    assert "| ipc | skipped | needs a GPU, CUDA sees none |" in report
    record = json.loads(report.split("```json")[1].split("```")[0])
    assert record["figures"]["adamw"] == rows["adamw"]["figures"]
    assert record["machine"]["facts"]["versions"]["torch"] and record["machine"]["model_size"] == "tiny"
    assert platform.node() not in report and str(tmp_path) not in report


def test_a_pasted_record_names_no_folder_host_or_user(monkeypatch):
    monkeypatch.setattr(platform, "node", lambda: "gpu-box")
    monkeypatch.setenv("HOME", "/home/alice")
    summary = "OSError: '/home/alice/runs/step.log' | on gpu-box in /scratch/alice, 12,000 tokens/s"
    text = pasted({"gpus": ["L4"]}, "1.5b", {"a": {"status": "failed", "summary": summary}}, ["a"])
    assert "| a | failed | OSError: 'step.log' \\| on … in …, 12,000 tokens/s |" in text
    assert text.startswith("### first_gpu: L4\n")


@pytest.mark.slow
def test_the_learners_benchmarks_run_on_a_cpu(run_here):
    code, statuses, rows = run_here("chunk", "packing", "fsdp")
    assert (code, set(statuses.values())) == (0, {"ok"})
    assert rows["fsdp"]["figures"]["whole"]["grad_norm"] > 0
    assert all(case["seconds"] > 0 for case in rows["chunk"]["figures"]["cases"])


@pytest.mark.slow
def test_actors_learn_and_take_weights_on_a_cpu(run_here):
    code, statuses, rows = run_here("rllib")
    assert (code, statuses) == (0, {"rllib": "ok"})
    assert min(rows["rllib"]["figures"]["grad_norms"]) > 0


@pytest.mark.slow
@pytest.mark.vllm
def test_vllm_follows_the_learner_on_a_cpu(run_here):
    code, statuses, rows = run_here("engine", "sleep_in_process", "train_one_process_256")
    assert (code, set(statuses.values())) == (0, {"ok"})
    assert rows["engine"]["figures"]["agreement"]["largest"] < 1e-3
    assert len(rows["sleep_in_process"]["figures"]["cycles"]) == 5
    assert all(step["grad_norm"] > 0 for step in rows["train_one_process_256"]["figures"]["steps"])
