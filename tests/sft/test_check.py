"""`python -m algorithms.sft --check`: what would be trained, and on what, before anything is."""

from pathlib import Path

import pytest
from transformers import TrainerCallback

from algorithms.config.files import to_yaml
from algorithms.config.loading import load
from algorithms.finetuning.config import SFTConfig
from algorithms.finetuning.rows import make_environment, read_rows
from algorithms.finetuning.trainer import make_trainer
from algorithms.models.names import context_length, resolve_model
from algorithms.models.tokenizer import load_tokenizer
from algorithms.sft import main
from algorithms.train.run_directory import RunDirectory

from .conftest import BASE, solved, write


def checked(capsys, *arguments: str) -> tuple[int, dict[str, str]]:
    """The exit code, and the lines by their names; those of a text are one."""
    code = main([*BASE, "run.trackers=[]", "--check", *arguments])
    lines: dict[str, str] = {}
    name = ""
    for line in capsys.readouterr().out.splitlines():
        name = line[:16].strip() or name
        lines[name] = f"{lines[name]}\n{line[16:]}" if name in lines else line[16:]
    return code, lines


def test_it_shows_the_first_row_and_counts_the_others(tmp_path, capsys):
    rows = solved()
    rows[1]["solution"] = "So: 0"
    rows[2]["solution"] = "so " * 60 + rows[2]["answer"]
    rows[3]["solution"] = " "
    file = write(tmp_path / "rows.jsonl", rows)
    settings = [f"environment.data={file}", "environment.answer=last_number", f"run.dir={tmp_path / 'runs'}"]
    code, lines = checked(capsys, *settings, "sft.rows=100", "run.name=begin")
    assert code == 0 and not (tmp_path / "runs").exists()
    assert lines["algorithm"] == "SFT" and "runs/begin-sft: 7 steps of 16 rows, an epoch is 7; lr" in lines["run"]
    assert "all weights trained, in float32" in lines["model"] and lines["environment"].endswith("rows.jsonl")
    counts = lines["solutions"]
    assert counts.startswith("100 to train on, of ") and "; 18 set aside; " in counts
    for part in ("1 whose solution is graded as incorrect", "1 longer than 48 tokens", "1 without a solution"):
        assert f"left out: {part}" in counts
    assert "float32 weights" in lines["memory"] and "NOT ENOUGH" not in lines["memory"]
    assert lines["evaluation"] == "embedded:heldout: 12 problems × 2 responses, before and after"
    config, _ = load(None, [*BASE, *settings], SFTConfig)
    tokenizer = load_tokenizer(resolve_model("embedded:tiny"))
    row = read_rows(config, make_environment(config), tokenizer, context_length(config.rl_module_settings)).train[0]
    assert lines["first prompt"].partition("\n") == (
        f"{row.uid}, {len(row.prompt)} tokens, no loss:",
        "\n",
        str(tokenizer.decode(row.prompt)).rstrip(),
    )
    assert lines["first solution"].startswith(f"{row.uid}, {len(row.response)} tokens, the loss is here:\nSo: ")
    assert lines["verdict"] == "nothing is missing here"


@pytest.mark.parametrize(("epochs", "batch", "micro"), [(1.5, 12, 4), (2.0, 7, 7), (0.3, 64, 16)])
def test_it_counts_the_steps_that_the_trainer_makes(data, epochs, batch, micro, tmp_path, capsys):
    settings = [f"environment.data={data}", f"sft.epochs={epochs}", f"sft.batch_size={batch}"]
    settings += [f"sft.micro_batch_size={micro}", f"run.dir={tmp_path}"]
    _, lines = checked(capsys, *settings)
    config, run = load(None, [*BASE, *settings], SFTConfig)
    tokenizer = load_tokenizer(resolve_model("embedded:tiny"))
    rows = read_rows(config, make_environment(config), tokenizer, 1024)
    trainer = make_trainer(config, run, tmp_path, rows.train, rows.held_out, TrainerCallback())
    steps = trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())[-1]
    assert f": {steps} steps of {batch} rows" in lines["run"]


def test_a_file_without_rows_to_set_aside_trains_without_measuring_them(tmp_path):
    settings = [f"environment.data={write(tmp_path / 'few.jsonl', solved()[:9])}", "evaluation.interval=4"]
    config, run = load(None, [*BASE, *settings], SFTConfig)
    tokenizer = load_tokenizer(resolve_model("embedded:tiny"))
    rows = read_rows(config, make_environment(config), tokenizer, 1024)
    trainer = make_trainer(config, run, tmp_path, rows.train, rows.held_out, TrainerCallback())
    assert not rows.held_out and trainer.args.eval_strategy == "no"


def test_too_little_memory_is_named_with_exit_code_2(data, capsys):
    many = ["sft.batch_size=4000000", "sft.micro_batch_size=4000000"]
    code, lines = checked(capsys, f"environment.data={data}", *many)
    assert code == 2 and "NOT ENOUGH; fix: a smaller sft.micro_batch_size" in lines["memory"]
    assert lines["verdict"] == "NOT ENOUGH here: memory"


def test_wrong_input_is_one_line_and_a_model_out_of_reach_is_no_error(data, monkeypatch, capsys):
    assert main([*BASE, "--check", "environment.data=embedded:train"]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and "error: sft.solution: " in captured.err.splitlines()[-1]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, lines = checked(capsys, f"environment.data={data}", "rl_module.model=nobody/reachable")
    assert code == 0 and "not checked" in lines["model"] and lines["verdict"].endswith("not checked: model")


def test_a_run_can_be_checked_before_it_is_resumed(data, tmp_path, capsys):
    settings = [f"environment.data={data}", f"run.dir={tmp_path}", "run.name=cut", "sft.steps=3", "run.trackers=[]"]
    config, run = load(None, [*BASE, *settings, "run.name=cut-sft"], SFTConfig)
    directory = RunDirectory.create(str(tmp_path), "cut-sft", to_yaml(config, run, algorithm="sft"), run.mode)
    before = sorted(path.name for path in Path(directory.path).iterdir())
    assert main(["--resume", str(directory.path), "--check"]) == 0
    assert ": 3 steps of 16 rows" in capsys.readouterr().out
    assert sorted(path.name for path in Path(directory.path).iterdir()) == before
