"""Records and table of the sweep of word problems."""

from algorithms.train.run_directory import RunDirectory
from benchmarks import laptop_math


def finish(folder, name, share):
    """Twelve problems, of which a share is solved after training."""
    run = RunDirectory.create(folder, name, "training: {lr: 1.0e-5, clip_low: 0.2}\n")
    solved = {"before": 0.0, "after": share or 0.0}
    metrics = {"mean_tokens": 20.0, "truncated": 0.25, "problems": 12.0, "samples": 2.0, "loss": 0.5}
    sides = {
        side: {"step": 0, "metrics": {"pass@1": each, **metrics}, "correct": {f"q{n}": each for n in range(12)}}
        for side, each in solved.items()
    }
    if share is None:  # it was stopped
        del sides["after"]
    run.write_evaluation({**sides, "wall_s": 150.0})
    run.append_metrics({"step": 30, "run/wall_s": 150.0})
    return run.path


def test_a_finished_run_becomes_a_record_and_a_line_in_place_of_its_arms_older_one(tmp_path, capsys):
    file = tmp_path / "records.jsonl"
    for name, arm, share in (("a", "GRPO", 0.5), ("b", "start", 0.25), ("c", "GRPO", 0.75)):
        run = finish(tmp_path, name, share)
        laptop_math.main([str(run), arm, "--note", "seed 0", "--records", str(file)])
    first, second = laptop_math.read_records(file)
    assert (first["arm"], second["arm"]) == ("start", "GRPO") and second["gain"] == [0.75, 0.75, 0.75]
    assert second["settings"] == {"training": {"lr": 1e-5}}
    assert "loss" not in second["after"] and "correct" not in second["after"]
    last = capsys.readouterr().out.splitlines()[-1]
    cells = "GRPO | 30 | 2 | 0.0 % → 75.0 % | +75.0 [+75.0, +75.0] | 20 → 20 | 25 % → 25 % | 12 × 2 | seed 0"
    assert last == f"| {cells} |"


def test_of_a_run_that_was_stopped_what_is_known_is_shown(tmp_path, capsys):
    laptop_math.main([str(finish(tmp_path, "a", None)), "start", "--records", str(tmp_path / "records.jsonl")])
    assert (
        capsys.readouterr().out.splitlines()[-1] == "| start | 30 | 2 | 0.0 % | not measured | 20 | 25 % | 12 × 2 |  |"
    )
