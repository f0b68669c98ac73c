"""Runs of `python -m algorithms.sft` with the embedded model."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from algorithms.config.loading import load
from algorithms.finetuning.config import SFTConfig
from algorithms.finetuning.rows import make_environment, read_rows
from algorithms.grpo.config import GRPOConfig
from algorithms.models.names import resolve_model, validate_model
from algorithms.models.tokenizer import load_tokenizer
from algorithms.publishing.hub import model_card
from algorithms.publishing.model_folder import export
from algorithms.sft import main

from .conftest import BASE

SETTINGS = [
    *BASE,
    "environment.answer=last_number",
    "sft.steps=6",
    "sft.lr=1e-3",
    "sft.held_out=10",
    "run.checkpoint_every=2",
    "evaluation.interval=4",
    "evaluation.limit=4",
]
TIMED = ("sft/tokens_per_s", "time/step", "run/wall_s")


def metrics(run: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{tag: value for tag, value in row.items() if tag not in TIMED} for row in rows]


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    assert main([*SETTINGS, f"environment.data={data}", f"run.dir={folder}", "run.name=start"]) == 0
    return folder / "start-sft"


def test_a_run_directory_is_that_of_a_training(run):
    summary = json.loads((run / "summary.json").read_text())
    assert summary["algorithm"] == "SFT" and summary["steps"] == 6
    stored = json.loads((run / "evaluation.json").read_text())
    assert len(stored["before"]["correct"]) == 4 and stored["after"]["step"] == 6
    before, after = (summary["eval"][side] for side in ("before", "after"))
    assert {"pass@1", "loss", "entropy", "token_accuracy"} <= before.keys() == after.keys()
    assert after["loss"] < before["loss"] - 0.1
    rows = metrics(run)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert rows[0]["sft/lr"] == pytest.approx(1e-3) and rows[-1]["sft/lr"] < 2e-4
    assert "eval/loss" in rows[3] and "eval/loss" not in rows[2]
    assert yaml.safe_load((run / "config.yaml").read_text())["algorithm"] == "sft"
    assert not (run / "trainer").exists() and list(run.glob("events.out.tfevents.*"))


def test_the_loss_is_that_of_the_responses_tokens_alone(run):
    config, _ = load(run / "config.yaml", [], SFTConfig)
    tokenizer = load_tokenizer(resolve_model("embedded:tiny"))
    rows = read_rows(config, make_environment(config), tokenizer, 1024).held_out
    stored = json.loads((run / "evaluation.json").read_text())
    for side, model in (("before", resolve_model("embedded:tiny")), ("after", run / "model")):
        lm = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        losses = []
        for row in rows:
            tokens = torch.tensor([[*row.prompt, *row.response]])
            logprobs = lm(tokens).logits[0].log_softmax(-1)[len(row.prompt) - 1 : -1]
            losses.append(-logprobs.gather(1, tokens[0, len(row.prompt) :, None]).squeeze(1))
        batches = [losses[start : start + 4] for start in range(0, len(losses), 4)]  # sft.micro_batch_size
        expected = sum(torch.cat(batch).mean().item() * len(batch) for batch in batches) / len(losses)
        assert stored[side]["metrics"]["loss"] == pytest.approx(expected, rel=1e-4)


def test_the_result_is_a_model_for_training_and_for_export(run, tmp_path):
    config, _ = load(None, [f"rl_module.model={run / 'model'}"], GRPOConfig)
    validate_model(config)
    assert export(run, tmp_path / "out").name == "step_000006"
    card = model_card(run, 6, name="start", dtype="float32")
    assert "6 steps with supervised learning" in card and "reinforcement-learning" not in card
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    kept = AutoModelForCausalLM.from_pretrained(run / "model").state_dict()
    assert all(torch.equal(whole[name], kept[name]) for name in kept)
    first = AutoModelForCausalLM.from_pretrained(resolve_model("embedded:tiny")).state_dict()
    assert any(not torch.equal(first[name], kept[name]) for name in kept)
    assert load_tokenizer(run / "model").chat_template == load_tokenizer(resolve_model("embedded:tiny")).chat_template


def test_a_finished_run_says_so_and_another_algorithms_is_refused(run, tmp_path, capsys):
    assert main(["--resume", str(run)]) == 0
    assert capsys.readouterr().out == f"{run} is finished: {run / 'model'}\n"
    (tmp_path / "config.yaml").write_text("algorithm: grpo\n")
    assert main(["--resume", str(tmp_path)]) == 2
    assert "is a run of grpo; fix: python -m algorithms.grpo --resume" in capsys.readouterr().err


# The command, which gets a signal once a step is recorded.
CUT = """
import os, sys
from algorithms.sft import main
from algorithms.finetuning.session import StepLog
from algorithms.train.stopping import call_and_leave

number, last, record = int(sys.argv.pop(1)), int(sys.argv.pop(1)), StepLog.step

def step(self, step, metrics):
    record(self, step, metrics)
    if step == last:
        os.kill(os.getpid(), number)

StepLog.step = step
call_and_leave(main)
"""


@pytest.mark.slow
def test_killed_or_stopped_it_resumes_to_the_same_numbers(run, data, tmp_path):
    arguments = [*SETTINGS, f"environment.data={data}", f"run.dir={tmp_path}", "run.name=start"]
    cut = tmp_path / "start-sft"
    for number, step in ((signal.SIGKILL, 3), (signal.SIGTERM, 4), (signal.SIGTERM, 6)):
        given = ["--resume", str(cut)] if cut.exists() else arguments
        process = subprocess.run([sys.executable, "-c", CUT, str(int(number)), str(step), *given])
        assert process.returncode == (-9 if number == signal.SIGKILL else 130)
        assert not (cut / "summary.json").exists()
    assert main(["--resume", str(cut)]) == 0
    assert metrics(cut) == metrics(run)
    once, again = (json.loads((folder / "evaluation.json").read_text()) for folder in (run, cut))
    assert again == once


@pytest.mark.slow
def test_an_adapter_is_merged_into_the_result_and_kept_beside_it(data, tmp_path):
    settings = [*SETTINGS, "sft.steps=3", "evaluation.interval=0", "rl_module.lora_rank=4", f"run.dir={tmp_path}"]
    assert main([*settings, f"environment.data={data}", "run.name=adapter"]) == 0
    checkpoint = tmp_path / "adapter-sft" / "checkpoints" / "step_000003"
    from peft import PeftModel

    base = AutoModelForCausalLM.from_pretrained(resolve_model("embedded:tiny"))
    first = {name: tensor.clone() for name, tensor in base.state_dict().items()}
    merged = PeftModel.from_pretrained(base, checkpoint / "adapter").merge_and_unload().state_dict()
    whole = AutoModelForCausalLM.from_pretrained(tmp_path / "adapter-sft" / "model").state_dict()
    changed = [name for name in whole if not torch.equal(whole[name], first[name])]
    assert changed and all("proj" in name for name in changed)
    for name in whole:
        assert torch.allclose(whole[name], merged[name], atol=1e-6)


@pytest.mark.slow
def test_an_evaluation_of_the_run_measures_its_result(run, tmp_path, capsys):
    from algorithms.evaluate import main as evaluate

    assert evaluate(["--model", str(run), "--out", str(tmp_path / "out")]) == 0
    scores = json.loads((tmp_path / "out" / "scores.json").read_text())
    (benchmark,) = scores.values()
    assert benchmark["problems"] == 4 and "skips settings" not in capsys.readouterr().err
