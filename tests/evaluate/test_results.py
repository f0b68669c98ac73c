"""The folder of an evaluation: the same evaluation goes on in it, another one never."""

import json
import shutil
from pathlib import Path

import pytest

from algorithms.evaluate import main
from algorithms.models.names import resolve_model

PROBLEMS = [{"problem": f"{n} + 1 = ?", "answer": str(n + 1), "level": "1"} for n in range(2)]
SMALL = ["--samples", "2", "env_runners.max_response_tokens=4"]


@pytest.fixture
def evaluate(tmp_path, capsys):
    """Evaluates a copy of the model on two problems; gives the exit code and what was said on standard error."""
    shutil.copytree(resolve_model("embedded:tiny"), tmp_path / "model")
    write_problems(tmp_path, PROBLEMS)

    def run(*arguments):
        asked = ["--model", str(tmp_path / "model"), "--data", str(tmp_path / "d.jsonl")]
        code = main([*asked, "--out", str(tmp_path / "out"), *SMALL, *arguments])
        return code, capsys.readouterr().err

    return run


def write_problems(folder: Path, problems):
    (folder / "d.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in problems))


def test_a_finished_evaluation_says_so_and_asks_nothing(evaluate):
    assert evaluate()[0] == 0
    code, told = evaluate()
    assert code == 0 and "already finished; nothing to sample" in told


def test_other_settings_are_named_and_those_of_scores_are_none(evaluate, tmp_path):
    assert evaluate("--k", "2")[0] == 0
    code, told = evaluate("--k", "1,2", "benchmarks.limits=[2]")
    assert code == 0 and "nothing to sample" in told
    scores = json.loads((tmp_path / "out" / "scores.json").read_text())["d"]["scores"]
    assert {"pass@1", "pass@2", "pass@1_within_2", "pass@2_within_2"} <= set(scores)
    assert "limits:\n  - 2\n" in (tmp_path / "out" / "evaluation.yaml").read_text()
    code, told = evaluate("env_runners.temperature=0.5", "run.seed=3")
    assert code == 2
    assert "other settings: run.seed 0 → 3; env_runners.temperature 1.0 → 0.5; fix:" in told.splitlines()[-1]


def test_what_it_runs_on_may_change_and_the_parts_stay_as_they_were_cut(evaluate, tmp_path):
    in_two_parts = ["env_runners.max_num_seqs=1", "--samples", "8"]
    assert evaluate(*in_two_parts)[0] == 0
    parts = sorted((tmp_path / "out" / "responses").iterdir())
    before = {part.name: part.read_bytes() for part in parts}
    assert len(before) == 2
    parts[1].unlink()
    elsewhere = ["env_runners.max_num_seqs=7", "env_runners.timeout_s=9", "training.lr=0.5", "--samples", "8"]
    code, told = evaluate(*elsewhere)
    assert code == 0 and "resuming in" in told
    assert {part.name for part in parts} == {part.name for part in (tmp_path / "out" / "responses").iterdir()}
    assert parts[0].read_bytes() == before[parts[0].name]
    assert "max_num_seqs: 7\n" in (tmp_path / "out" / "evaluation.yaml").read_text()
    parts[1].unlink()
    assert evaluate(*elsewhere)[0] == 0
    assert {part.name for part in parts} == {part.name for part in (tmp_path / "out" / "responses").iterdir()}


def test_other_problems_under_the_same_name_are_refused(evaluate, tmp_path):
    assert evaluate()[0] == 0
    write_problems(tmp_path, [{**problem, "answer": "0"} for problem in PROBLEMS])
    code, told = evaluate()
    assert code == 2
    last = told.splitlines()[-1]
    assert "the problems of d differ" in last and "fix: another --out, or delete that folder" in last


def test_other_weights_under_the_same_name_are_refused_and_a_copy_is_not(evaluate, tmp_path):
    assert evaluate()[0] == 0
    weights = next((tmp_path / "model").glob("*.safetensors"))
    content = weights.read_bytes()
    weights.write_bytes(content)
    assert evaluate()[0] == 0, "as they were, written again"
    weights.write_bytes(content[:-4] + bytes(4))
    code, told = evaluate()
    assert code == 2 and "the files of the model differ" in told.splitlines()[-1]


def test_a_finished_evaluation_of_a_model_that_is_gone_is_told_again(evaluate, tmp_path):
    assert evaluate()[0] == 0
    shutil.rmtree(tmp_path / "model")
    assert evaluate()[0] == 0
