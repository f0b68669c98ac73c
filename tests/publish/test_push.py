"""`--push`: the export and its card through the Hub's own client, to a local stand-in of its API."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from algorithms.export import main
from algorithms.models.names import resolve_model
from algorithms.publishing.hub import model_card
from algorithms.train.manifest import write_manifest
from algorithms.utils.provenance import code_commit
from algorithms.utils.statistics import score, share_interval
from tests.hub_stand_in import running_hub

ROOT = Path(__file__).parents[2]
SHARES = [0.0] * 5 + [0.5] * 5 + [1.0] * 5
CONFIG = {
    "algorithm": "r3_grpo",
    "run": {"name": "mine", "seed": 7, "steps": 2, "dir": "/home/somebody/runs"},
    "rl_module": {"model": "Qwen/Qwen3-0.6B"},
    "environment": {"data": "/home/somebody/problems.jsonl", "options": {"key": "a secret"}},
    "training": {"lr": 1e-4},
    "replay": {"enabled": True, "k": 1, "note": "a secret"},
    "ranking": {"enabled": False, "max_reward": 0.1},
    "evaluation": {"data": "heldout.jsonl", "samples": 8},
}


def evaluation(shares, step) -> dict:
    mean = sum(shares) / len(shares)
    correct = {str(number): share for number, share in enumerate(shares)}
    return {"step": step, "metrics": {"pass@1": mean, "mean_tokens": 1234.5}, "correct": correct, "levels": {}}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    """A run of two steps, as its files have it; its model is the embedded one."""
    folder = tmp_path_factory.mktemp("runs") / "mine"
    for step in (1, 2):
        checkpoint = folder / "checkpoints" / f"step_{step:06d}"
        shutil.copytree(resolve_model("embedded:tiny"), checkpoint / "model")
        (checkpoint / "state.json").write_text("{}")
        write_manifest(checkpoint)
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    sides = {"before": evaluation([0.0] * 15, 0), "after": evaluation(SHARES, 2)}
    (folder / "evaluation.json").write_text(json.dumps(sides))
    (folder / "summary.json").write_text(json.dumps({"steps": 2, "code": {"version": "0.1.0", "commit": "abc123"}}))
    return folder


@pytest.fixture
def hub():
    with running_hub() as served:
        yield served


@pytest.fixture
def python(hub, tmp_path):
    """Run Python as a user that is logged in to the stand-in: the client reads the variables when it is imported."""

    def start(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        surroundings = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HF_ENDPOINT": hub.url,
            "HF_TOKEN": hub.token,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_OFFLINE": "0",
            **variables,
        }
        command = [sys.executable, *arguments]
        return subprocess.run(command, env=surroundings, capture_output=True, text=True, timeout=600, cwd=tmp_path)

    return start


PUSH = """
import sys
from pathlib import Path
from algorithms.publishing.hub import PublishError, push

try:
    print(push(Path("out"), "somebody/mine", private=False, message=sys.argv[1]))
except PublishError as error:
    sys.exit(str(error))
"""


@pytest.fixture
def out(tmp_path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(bytes(1000))
    (folder / "README.md").write_text("---\ntags: []\n---\n")
    return folder


def test_an_export_is_pushed_whole_with_its_card(python, hub, run, tmp_path):
    done = python("-m", "algorithms.export", str(run), "out", "--push", "somebody/mine", "--private")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"published at {hub.url}/somebody/mine"
    assert hub.repositories == {"somebody/mine": True} and hub.commits == ["Step 2 of mine"]
    here = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    assert hub.files["somebody/mine"] == here
    assert {"README.md", "config.json", "tokenizer.json", "model.safetensors"} <= here.keys()
    assert here["README.md"].decode() == model_card(run, 2, name="mine", dtype="float32")


def test_a_second_push_is_a_second_commit_of_the_same_repository(python, hub, out):
    assert python("-c", PUSH, "one").stdout.strip() == f"{hub.url}/somebody/mine"
    (out / "model.safetensors").write_bytes(bytes(2000))
    assert python("-c", PUSH, "two").returncode == 0
    assert hub.commits == ["one", "two"] and hub.repositories == {"somebody/mine": None}, "not asked to be public"
    assert len(hub.files["somebody/mine"]["model.safetensors"]) == 2000


@pytest.mark.parametrize(
    ("variables", "reason"),
    [({"HF_TOKEN": "hf_wrong"}, "401"), ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "refused")],
)
def test_a_refused_push_is_one_line_that_says_how_to_upload_the_export(python, out, variables, reason):
    done = python("-c", PUSH, "one", **variables)
    (line,) = done.stderr.splitlines()
    assert line.startswith("--push: somebody/mine: ") and reason in line
    assert line.endswith("hf upload somebody/mine out")


@pytest.mark.parametrize("name", ["some body/mine", ""])
def test_a_name_that_the_hub_does_not_take_is_refused_before_anything_is_written(name, run, tmp_path, capsys):
    assert main([str(run), str(tmp_path / "out"), "--push", name]) == 2
    assert f"--push: {name!r} cannot name a repository" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_card_holds_settings_evaluation_with_intervals_and_the_commit(run):
    _, front, text = model_card(run, 2, name="mine", dtype="bfloat16").split("---\n", 2)
    assert yaml.safe_load(front)["base_model"] == "Qwen/Qwen3-0.6B"
    assert "trained for 2 steps with R³-GRPO" in text and "Weights in bfloat16" in text
    assert "15 held-out problems, 8 answers each" in text
    (row,) = re.findall(r"^\| pass@1 \| (\S+) \[(\S+), (\S+)\] \| (\S+) \[(\S+), (\S+)\] \|$", text, re.MULTILINE)
    shares = score(SHARES)
    expected = [*wilson_of_none(15), shares.mean, shares.low, shares.high]
    assert [float(cell) for cell in row] == pytest.approx(expected, abs=6e-4)
    assert "| mean_tokens | 1,234.5 | 1,234.5 |" in text
    assert re.search(
        r"^Change of pass@1: \+0\.500 \[\+0\.\d+, \+0\.\d+\], paired over 15 problems: rose\.$", text, re.M
    )
    rows = ("`run.seed` | `7`", "`run.steps` | `2`", "`training.lr` | `0.0001`", "`replay.k` | `1`")
    assert all(f"| {row} |" in text for row in rows)
    assert "r3-grpo 0.1.0, commit `abc123`" in text


def wilson_of_none(count: int) -> tuple[float, float, float]:
    return 0.0, *share_interval(0, count)


def test_the_card_names_neither_folders_nor_options_nor_a_method_that_is_off(run):
    card = model_card(run, 2, name="mine", dtype="float32")
    assert "somebody" not in card and "problems.jsonl" not in card and "a secret" not in card
    assert "| `ranking.enabled` | `False` |" in card and "ranking.max_reward" not in card


@pytest.mark.parametrize("data", ["data/acme/patients.jsonl", "acme.jsonl", "~/acme/data", "../acme/data"])
@pytest.mark.parametrize("model", ["models/acme-base", "../acme-base", "~/acme-base"])
def test_the_card_does_not_name_a_relative_folder(data, model, run, tmp_path, monkeypatch):
    copy = shutil.copytree(run, tmp_path / "copy", ignore=shutil.ignore_patterns("checkpoints"))
    (tmp_path / "models" / "acme-base").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    own = {**CONFIG, "rl_module": {"model": model}, "environment": {"id": "envs/acme.py:Env", "data": data}}
    (copy / "config.yaml").write_text(yaml.safe_dump(own))
    card = model_card(copy, 2, name="mine", dtype="float32")
    assert "acme" not in card and "A model from a folder trained for" in card and "base_model" not in card


@pytest.mark.parametrize("data", ["openai/gsm8k", "preset:gsm8k#test", "embedded:train", "train#seed=1,size=48"])
def test_the_card_names_the_problems_where_they_are_no_file(data, run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy", ignore=shutil.ignore_patterns("checkpoints"))
    (copy / "config.yaml").write_text(yaml.safe_dump({**CONFIG, "environment": {"id": "r3env/Math-v0", "data": data}}))
    card = model_card(copy, 2, name="mine", dtype="float32")
    assert f"| `environment.data` | `{data}` |" in card and "| `environment.id` | `r3env/Math-v0` |" in card


def test_an_evaluation_of_another_step_is_not_the_checkpoints(run):
    card = model_card(run, 1, name="mine", dtype="float32")
    assert "of step 1, was not evaluated by its run" in card and "pass@1" not in card


def test_the_card_of_a_supervised_start_has_no_settings_of_the_training_that_follows(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy", ignore=shutil.ignore_patterns("checkpoints"))
    (copy / "config.yaml").write_text(yaml.safe_dump({**CONFIG, "algorithm": "sft", "sft": {"lr": 3e-5}}))
    card = model_card(copy, 2, name="mine", dtype="float32")
    assert "| `sft.lr` | `3e-05` |" in card and "| `run.seed` | `7` |" in card
    assert "training.lr" not in card and "run.steps" not in card


def test_the_card_says_that_training_began_with_other_weights_than_the_base_and_not_where_they_lay(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy", ignore=shutil.ignore_patterns("checkpoints"))
    sections = {**CONFIG, "run": {**CONFIG["run"], "start_from": "/home/somebody/runs/first/checkpoints/step_000002"}}
    (copy / "config.yaml").write_text(yaml.safe_dump(sections))
    card = model_card(copy, 2, name="mine", dtype="float32")
    assert "rewards), beginning with weights of another run or an adapter. " in card and "somebody" not in card


def test_a_damaged_file_of_the_run_is_named(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy", ignore=shutil.ignore_patterns("checkpoints"))
    (copy / "summary.json").write_text("{")
    with pytest.raises(ValueError, match=r"summary\.json: cannot be read"):
        model_card(copy, 2, name="mine", dtype="float32")


def test_this_checkout_knows_its_commit_and_a_build_is_told(monkeypatch):
    done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True)
    assert done.returncode != 0 or (code_commit() or "").removesuffix("-dirty") == done.stdout.strip()
    monkeypatch.setenv("R3_GRPO_COMMIT", "0123abc")
    assert code_commit() == "0123abc"
