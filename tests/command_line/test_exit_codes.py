"""Wrong input: exit code 2 and one last line that names it; `--check`: 0, and nothing is started."""

import itertools
import re
import subprocess
import sys
from importlib.resources import files as files_of
from pathlib import Path

import pytest

from algorithms.train.main import main
from algorithms.train.manifest import take_as_they_are, write_manifest
from tests.shipped_files import training_files, with_a_task


def outcome(capsys, algorithm, *arguments):
    """Exit code, and the lines of standard error."""
    try:
        code = main(algorithm, list(arguments))
    except SystemExit as stop:  # argparse's own
        code = stop.code
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
    return code, captured.err.splitlines()


@pytest.fixture
def files(tmp_path) -> Path:
    (tmp_path / "wrong_key.yaml").write_text("training:\n  lerning_rate: 1.0e-5\n")
    (tmp_path / "not_yaml.yaml").write_text("training: [\n")
    (tmp_path / "problems.jsonl").write_text('{"sum": "1+1", "value": "2"}\n')
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "no_run").mkdir()
    (tmp_path / "no_model").mkdir()
    damaged = tmp_path / "damaged" / "checkpoints" / "step_000001"
    damaged.mkdir(parents=True)
    (damaged / "state.json").write_text("{}")
    (tmp_path / "damaged" / "config.yaml").write_text("run:\n  name: damaged\n")
    take_as_they_are(tmp_path / "damaged", [1], {})
    checkpoint = tmp_path / "stopped" / "checkpoints" / "step_000001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.json").write_text("{}")
    write_manifest(checkpoint)
    (tmp_path / "stopped" / "config.yaml").write_text("run:\n  name: stopped\n")
    take_as_they_are(tmp_path / "stopped", [1], {})
    embedded = files_of("r3env") / "assets" / "train.jsonl"
    (tmp_path / "copy.jsonl").write_text(embedded.read_text())
    return tmp_path


WRONG = {
    "key": (["training.lerning_rate=1"], "training.lerning_rate"),
    "key of another section": (["training.max_response_tokens=5"], "env_runners.max_response_tokens"),
    "section": (["trainng.lr=1"], "trainng"),
    "type": (["training.lr=fast"], "training.lr"),
    "range": (["training.group_size=1"], "training.group_size"),
    "choice": (["env_runners.engine=vlm"], "vllm"),
    "no value": (["training.lr"], "training.lr"),
    "settings that do not fit": (["training.minibatches=7"], "training.minibatches"),
    "file": (["--config", "{files}/missing.yaml"], "missing.yaml"),
    "key in a file": (["--config", "{files}/wrong_key.yaml"], "training.lerning_rate"),
    "file that is no YAML": (["--config", "{files}/not_yaml.yaml"], "not_yaml.yaml"),
    "model": (["rl_module.model={files}/nothing"], "rl_module.model"),
    "mistyped folder of a model": (["rl_module.model={files}/no_modell"], "no_model?"),
    "tracker": (["run.trackers=[wandbb]"], "did you mean wandb?"),
    "TRL's name": (["training.epsilon_high=0.3"], "fix: write training.clip_high"),
    "folder without a model": (["rl_module.model={files}/no_model"], "rl_module.model"),
    "embedded model": (["rl_module.model=embedded:huge"], "embedded:tiny"),
    "environment": (["environment.id=r3env/Maths-v0"], "environment.id"),
    "module of an environment": (["environment.id=no_such_module:Env-v0"], "no_such_module"),
    "data": (["environment.data={files}/nothing.jsonl"], "nothing.jsonl"),
    "columns of the data": (["environment.data={files}/problems.jsonl"], "problem"),
    "empty data": (["environment.data={files}/empty.jsonl"], "empty.jsonl"),
    "held-out data": (["evaluation.data={files}/nothing.jsonl"], "evaluation.data"),
    "trained on held-out data": (["evaluation.data=embedded:train"], "evaluation.data"),
    "more GPUs than there are": (["learners.num_learners=1", "learners.num_gpus_per_learner=64"], "gpu"),
    "a copy of the training problems": (["evaluation.data={files}/copy.jsonl"], "evaluation.data"),
    "resumed run's data": (["--resume", "{files}/stopped", "evaluation.data=nope.jsonl"], "nope.jsonl"),
    "resumed run's model": (["--resume", "{files}/stopped", "rl_module.model=./nope"], "rl_module.model"),
    "resumed run's configuration": (["--resume", "{files}/stopped", "--config", "x.yaml"], "--config"),
    "run to continue": (["--continue"], "run.name: --continue"),
    "run to continue and to resume": (["--continue", "run.name=stopped", "--resume", "x"], "--continue"),
    "run to resume": (["--resume", "{files}/nothing"], "nothing"),
    "no run to resume": (["--resume", ""], "error: .: not a run directory"),
    "path that is too long": (["--resume", 300 * "x"], "File name too long; fix: another path"),
    "home of nobody": (["--config", "~nobody9/x.yaml"], "~nobody9/x.yaml: no such file"),
    "start in the home of nobody": (["run.start_from=~nobody9/x"], "run.start_from"),
    "brackets without end": (["run.restarts=" + 5000 * "["], "run.restarts"),
    "folder that is no run": (["--resume", "{files}/no_run"], "no_run"),
    "damaged checkpoint": (["--resume", "{files}/damaged"], "manifest.json is missing"),
    "name of a run": (["run.name=a/b"], "run.name"),
    "folder of runs": (["run.dir=/proc/x"], "error: run.dir: '/proc/x'"),
    "file for a folder of runs": (["run.dir={files}/copy.jsonl"], "error: run.dir: "),
    "option": (["--confg", "x"], "--confg"),
}


@pytest.mark.parametrize(("algorithm", "case"), zip(itertools.cycle(["r3_grpo", "grpo"]), WRONG))
def test_wrong_input_is_one_line_that_names_it_and_exit_code_2(capsys, files, monkeypatch, algorithm, case):
    monkeypatch.chdir(files)
    arguments, named = WRONG[case]
    code, lines = outcome(capsys, algorithm, *(argument.format(files=files) for argument in arguments))
    assert code == 2
    assert named.lower() in lines[-1].lower()
    assert "error: " in lines[-1]
    assert len([line for line in lines if "error" in line.lower()]) == 1
    assert not (files / "runs").exists()


def test_a_run_that_was_begun_is_continued_with_its_own_configuration(capsys, tmp_path):
    (tmp_path / "mine").mkdir()
    stored = "run: {name: mine}\ntraining: {queries_per_step: 3}\nenv_runners: {max_response_tokens: 64}\n"
    (tmp_path / "mine" / "config.yaml").write_text(stored)
    start = ["--continue", f"run.dir={tmp_path}", "training.queries_per_step=5", "--check"]
    assert main("r3_grpo", [*start, "run.name=mine"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"\b3 prompt groups", printed)
    assert f"--continue: resuming {tmp_path / 'mine'} with its own settings; to change one: --resume" in printed
    assert main("r3_grpo", [*start, "run.name=new"]) == 0
    assert re.search(r"\b5 prompt groups", capsys.readouterr().out)


def test_grpo_has_no_settings_of_the_mechanisms(capsys):
    code, lines = outcome(capsys, "grpo", "replay.k=2")
    assert code == 2 and "replay" in lines[-1]


def test_check_of_what_this_machine_cannot_hold_ends_with_2(capsys):
    assert main("r3_grpo", ["--check"]) == 0
    assert main("r3_grpo", ["learners.num_learners=1", "learners.num_gpus_per_learner=64", "--check"]) == 2
    assert "64 GPUs for actors; " in capsys.readouterr().out


def test_a_first_prompt_that_reads_like_a_finding_is_none(capsys, tmp_path):
    (tmp_path / "p.jsonl").write_text('{"problem": "eggs: NOT ENOUGH", "answer": "1"}\n')
    settings = ["environment.columns={}", "evaluation.data=null", "evaluation.columns={}"]
    assert main("r3_grpo", [f"environment.data={tmp_path / 'p.jsonl'}", *settings, "--check"]) == 0
    assert "eggs: NOT ENOUGH" in capsys.readouterr().out


@pytest.mark.parametrize("config", training_files(), ids=lambda file: file.stem)
def test_check_describes_every_shipped_configuration(capsys, config, request):
    files, settings = with_a_task(config)
    if config.stem.startswith("laptop"):
        request.getfixturevalue("real_model")  # which they name by its folder
    code = main("r3_grpo", [*(f"--config={file}" for file in files), *settings, "--check"])
    captured = capsys.readouterr()
    assert code == (2 if ": NOT ENOUGH" in captured.out else 0)
    for name in ("algorithm", "driver", "env runners", "learners", "model", "environment", "evaluation"):
        assert f"\n{name} " in f"\n{captured.out}"
    assert "error" not in captured.err


def test_check_starts_no_ray_and_leaves_no_run(surroundings, tmp_path):
    script = (
        "import sys; from algorithms.train.main import main; code = main('r3_grpo', ['--check']); "
        "import ray; assert not ray.is_initialized(); sys.exit(code)"
    )
    process = subprocess.run(
        [sys.executable, "-c", script], env=surroundings, cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert process.returncode == 0, process.stderr
    assert "R3GRPO" in process.stdout
    assert list(tmp_path.iterdir()) == []


def test_check_finds_wrong_input_too(capsys, files):
    code, lines = outcome(capsys, "r3_grpo", "--check", f"environment.data={files}/nothing.jsonl")
    assert code == 2 and "nothing.jsonl" in lines[-1]
