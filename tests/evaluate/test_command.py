"""`python -m algorithms.evaluate`, with the embedded model."""

import json
import shutil
from pathlib import Path

import pytest

from algorithms.evaluate import main, parser
from algorithms.evaluation.responses import ResponseFolder
from algorithms.models.names import resolve_model
from algorithms.train.manifest import write_manifest

ASKED = ["--model", "embedded:tiny", "--config", "configs/quickstart.yaml", "--samples", "4", "evaluation.limit=12"]
IN_PARTS = ["env_runners.max_num_seqs=2"]  # four problems a part


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("evaluation") / "whole"
    code = main([*ASKED, *IN_PARTS, "--data", "math=embedded:heldout", "--reflection", "--out", str(out)])
    assert code == 0
    return out


def test_every_response_is_kept_and_the_scores_are_those_of_the_responses(whole):
    responses = ResponseFolder(whole / "responses").read()
    assert len(responses) == 48 and len({(one.uid, one.sample) for one in responses}) == 48
    assert {one.benchmark for one in responses} == {"math"} and all(one.level for one in responses)
    assert all(one.verdict != "equal" or one.answer is not None for one in responses)
    scores = json.loads((whole / "scores.json").read_text())["math"]
    assert scores["scores"]["pass@1"]["mean"] == pytest.approx(sum(one.correct for one in responses) / 48)
    second = [one for one in responses if not one.correct]
    assert all(one.reflected_response is not None for one in second)
    assert all(one.reflected_response is None and one.reflected_correct for one in responses if one.correct)
    after = sum(one.reflected_correct for one in responses) / 48
    assert scores["scores"]["pass@1_after_reflection"]["mean"] == pytest.approx(after)


def test_gone_on_with_after_an_interruption_it_is_the_same(whole, tmp_path, capsys):
    cut = tmp_path / "cut"
    shutil.copytree(whole, cut)
    (cut / "scores.json").unlink()
    kept = cut / "responses" / "part-000000.parquet"
    (cut / "responses" / "part-000001.parquet").unlink()
    before = kept.stat().st_mtime_ns
    assert main([*ASKED, *IN_PARTS, "--data", "math=embedded:heldout", "--reflection", "--out", str(cut)]) == 0
    assert "resuming in" in capsys.readouterr().err
    assert kept.stat().st_mtime_ns == before, "what was there is not asked again"
    assert ResponseFolder(cut / "responses").read() == ResponseFolder(whole / "responses").read()
    assert (cut / "scores.json").read_text() == (whole / "scores.json").read_text()


def test_other_settings_do_not_mix_into_a_folder(whole, capsys):
    assert main([*ASKED, "--data", "math=embedded:heldout", "--out", str(whole)]) == 2
    assert "other settings" in capsys.readouterr().err


def test_a_damaged_part_is_one_line(whole, tmp_path, capsys):
    cut = shutil.copytree(whole, tmp_path / "cut")
    part = cut / "responses" / "part-000000.parquet"
    part.write_bytes(part.read_bytes()[:100])
    assert main([*ASKED, *IN_PARTS, "--data", "math=embedded:heldout", "--reflection", "--out", str(cut)]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"error: {part}: cannot be read") and "fix: delete it" in last


def test_a_damaged_part_of_one_that_goes_on_is_one_line_too(whole, tmp_path, capsys):
    cut = shutil.copytree(whole, tmp_path / "cut")
    part = cut / "responses" / "part-000000.parquet"
    part.write_bytes(part.read_bytes()[:100])
    (cut / "responses" / "part-000001.parquet").unlink()
    assert main([*ASKED, *IN_PARTS, "--data", "math=embedded:heldout", "--reflection", "--out", str(cut)]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"error: {part}: cannot be read")


def test_hard_for_an_evaluation_that_is_not_finished_is_refused(whole, tmp_path, capsys):
    cut = shutil.copytree(whole, tmp_path / "cut")
    (cut / "responses" / "part-000001.parquet").unlink()
    assert main([*ASKED, "--data", "math=embedded:heldout", f"benchmarks.hard_for={cut}"]) == 2
    assert "is not finished: 8 of 12 problems, 4 answers each; fix:" in capsys.readouterr().err.splitlines()[-1]


def test_hard_for_an_evaluation_with_one_answer_of_each_problem_is_refused(whole, tmp_path, capsys):
    once = tmp_path / "once"
    assert (
        main([*ASKED, "--samples", "1", "evaluation.k=[1]", "--data", "math=embedded:heldout", "--out", str(once)]) == 0
    )
    assert main([*ASKED, "--data", "math=embedded:heldout", f"benchmarks.hard_for={once}"]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "benchmarks.hard_for: " in last and "has 1 answer of each problem" in last and "evaluation.samples=8" in last


def test_the_hard_ones_of_an_earlier_evaluation_can_be_asked_alone(whole, tmp_path, capsys):
    arguments = [*ASKED, "--data", "math=embedded:heldout", "--out", str(tmp_path / "hard")]
    assert main([*arguments, f"benchmarks.hard_for={whole}"]) == 0
    solved: dict[str, int] = {}
    for one in ResponseFolder(whole / "responses").read():
        solved[one.uid] = solved.get(one.uid, 0) + one.correct
    asked = {one.uid for one in ResponseFolder(tmp_path / "hard" / "responses").read()}
    assert asked == {uid for uid, count in solved.items() if count <= 1} and 0 < len(asked) < len(solved)
    assert f"{len(asked)} of 12 problems, 4 answers each, at most 1 correct" in capsys.readouterr().err
    drawn = {(one.uid, one.sample): one.response for one in ResponseFolder(whole / "responses").read()}
    again = ResponseFolder(tmp_path / "hard" / "responses").read()
    assert sum(one.response == drawn[one.uid, one.sample] for one in again) < len(again) / 2, "with draws of their own"
    for pair in ([str(whole), str(tmp_path / "hard")], [str(tmp_path / "hard"), str(whole)]):
        assert main(["--compare", *pair]) == 2
        assert "worse on them by chance alone; fix: evaluate that model again" in capsys.readouterr().err


def test_two_evaluations_are_compared(whole, tmp_path, capsys):
    other = tmp_path / "other"
    assert main([*ASKED, "--data", "math=embedded:heldout", "run.seed=1", "--out", str(other)]) == 0
    assert main(["--compare", str(whole), str(other)]) == 0
    told = capsys.readouterr().out
    assert "math: other minus whole, 12 of whole's 12 and other's 12 problems" in told
    assert "only one of the two has it: math pass@2, math pass@1 after reflection\n" in told
    assert "  run.seed 0 → 1\n" in told and "rl_module.model" not in told


def test_the_help_has_one_percent_sign_and_the_default_model():
    told = " ".join(parser().format_help().split())
    assert "with 95 % intervals" in told and "default: embedded:tiny" in told


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--model", "embedded:tiny"], "benchmarks.data"),
        (["--model", "embedded:tiny", "--data", "missing.jsonl"], "missing.jsonl"),
        (["--model", "embedded:tinny", "--data", "embedded:heldout"], "rl_module.model"),
        (["--model", "embedded:tiny", "--data", "embedded:heldout", "--samples", "2", "--k", "3"], "evaluation.k"),
        (["--compare", "nowhere", "nowhere"], "nowhere"),
        (["--model", "embedded:tiny", "--data", "embedded:heldout", "evaluation.sample=2"], "evaluation.samples"),
        (["--model", "nosuchfolder", "--data", "embedded:heldout"], "rl_module.model"),
        (["--model", "", "--data", "embedded:heldout"], "--model: is empty"),
        (["--data", "embedded:heldout", "run.start_from=adapter"], "run.start_from: an evaluation does not load it"),
        (["--model", "embedded:tiny", "--data", "embedded:heldout", "run.start_from=adapter"], "run.start_from: an"),
        (["--data", "x/test.jsonl", "--data", "y/test.jsonl"], "fix: --data NAME=SOURCE"),
        (["--data", "x="], "x has no source; fix: --data x=FILE"),
        (["--data", ""], "data has no source; fix: --data data=FILE"),
        (["benchmarks.data.x="], "x has no source; fix: --data x=FILE"),
    ],
)
def test_wrong_input_is_one_line_and_exit_2(arguments, named, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: ") and named in last
    assert not (tmp_path / "evaluations").exists(), "nothing is left of what never began"


def test_a_checkpoint_and_a_folder_of_runs_are_no_models_and_the_fix_names_them(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = Path("runs/a/checkpoints/step_000003/model")
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    Path("runs/a/config.yaml").write_text("{}")
    for named, fix in {
        model.parent: f"fix: --model {model} --config runs/a/config.yaml",
        model.parent.parent: f"fix: --model {model} --config runs/a/config.yaml",
        Path("runs"): "fix: --model runs/a, ",
    }.items():
        assert main(["--model", str(named), "--data", "embedded:heldout"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: --model: {named} ") and fix in line


def test_an_adapter_is_no_model_and_the_fix_names_the_merged_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model, own = Path("runs/a/checkpoints/step_000003/model"), Path("mine")
    for folder in (model.with_name("adapter"), own):
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").write_text("{}")
    model.mkdir()
    (model / "config.json").write_text("{}")
    for named, fix in {model.with_name("adapter"): f"fix: --model {model}", own: "fix: merge it into its base"}.items():
        assert main(["--model", str(named), "--data", "embedded:heldout"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: --model: {named} is an adapter without its base; ") and fix in line


def test_a_model_of_a_checkpoint_that_is_not_what_was_written_is_refused(tmp_path, capsys):
    checkpoint = tmp_path / "step_000001"
    shutil.copytree(resolve_model("embedded:tiny"), checkpoint / "model")
    write_manifest(checkpoint)
    (checkpoint / "model" / "config.json").write_text("{}")
    assert main(["--model", str(checkpoint / "model"), "--data", "embedded:heldout"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: --model: {checkpoint}: the checkpoint is damaged, model/config.json has 2 bytes")


def test_an_evaluation_that_cannot_be_written_is_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "out"
    assert main([*ASKED, "--data", "math=embedded:heldout", "--out", str(out)]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"error: --out: {out} cannot be written (Not a directory); fix: ")


def test_a_greedy_evaluation_takes_the_likeliest_tokens_whatever_the_seed(tmp_path):
    asked = [*("--model", "embedded:tiny", "--config", "configs/quickstart.yaml"), "--greedy", "evaluation.limit=12"]
    found = []
    for seed in (0, 5):
        out = tmp_path / str(seed)
        assert main([*asked, "--data", "math=embedded:heldout", "--out", str(out), f"run.seed={seed}"]) == 0
        found.append({one.uid: one.response for one in ResponseFolder(out / "responses").read()})
    assert found[0] == found[1] and len(found[0]) == 12
    scores = json.loads((tmp_path / "0" / "scores.json").read_text())["math"]["scores"]
    assert "pass@1" in scores and not any(name.startswith("pass@") for name in scores.keys() - {"pass@1"})


def test_several_greedy_answers_per_problem_are_refused(capsys, tmp_path):
    greedy = ["--model", "embedded:tiny", "--data", "math=embedded:heldout", "--out", str(tmp_path / "out"), "--greedy"]
    assert main([*greedy, "--samples", "4"]) == 2
    assert "fix: evaluation.samples=1 and evaluation.k=[1]" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
