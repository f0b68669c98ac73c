"""What a finished run leaves behind."""

import json

import pyarrow.parquet as pq
import pytest
import torch
import yaml

from .conftest import rows

pytestmark = pytest.mark.slow

TAGS = {
    "reward/mean",
    "groups/solve_all",
    "groups/solve_none",
    "policy/entropy",
    "policy/logp_mismatch_max",
    "policy/logp_mismatch_mean",
    "policy/clip_fraction",
    "policy/grad_norm",
    "replay/added",
    "reflection/prompts",
    "reflection/correct",
    "ranking/ranked",
    "response/mean_tokens",
    "response/truncated",
    "grading/timeouts",
    "rollout/prompts_expected",
    "rollout/prompts_completed",
    "rollout/runner_restarts",
}


@pytest.fixture(scope="module")
def run(finished_run):
    return finished_run[0]


@pytest.fixture(scope="module")
def events(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(run), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


def test_the_run_directory_is_complete(run):
    present = {path.name for path in run.iterdir() if not path.name.startswith("events.")}
    assert present == {
        ".lock",
        "config.yaml",
        "metrics.jsonl",
        "rollouts",
        "checkpoints",
        "history.sqlite",
        "history.sqlite-journal",  # SQLite's own, kept from one commit to the next
        "evaluation.json",
        "manifest.json",
        "summary.json",
        "curves.png",
    }
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_the_user_sees_our_lines_and_nothing_else(finished_run):
    run, process = finished_run
    for noise in ("Traceback", "Warning", "WARNING", "deprecat", "INFO", "(raylet)", "FutureWarning"):
        assert noise not in process.stderr + process.stdout
    assert str(run) in process.stderr
    assert "\nweights: copied within the driver's process\n" in process.stderr
    assert "pass@1" in process.stdout + process.stderr


def test_the_configuration_is_whole_and_reads_back(run):
    from algorithms.config.loading import load
    from algorithms.r3_grpo.config import R3GRPOConfig

    stored = yaml.safe_load((run / "config.yaml").read_text())
    assert stored["algorithm"] == "r3_grpo"
    assert stored["run"]["steps"] == 3 and stored["training"]["group_size"] == 4
    assert stored["replay"]["k"] == 1
    config, settings = load(run / "config.yaml", [], R3GRPOConfig)
    assert {"run": settings.model_dump(), **config.to_sections()} == {
        section: values for section, values in stored.items() if section != "algorithm"
    }


def test_one_row_of_metrics_a_step(run):
    metrics = rows(run)
    assert [row["step"] for row in metrics] == [1, 2, 3]
    for row in metrics:
        assert row.keys() >= TAGS
        assert any(tag.startswith("throughput/") for tag in row) and any(tag.startswith("time/") for tag in row)
        assert row["rollout/engine"] == "transformers"
        assert row["rollout/weight_transfer"] == "in_process"
        assert row["rollout/prompts_completed"] == row["rollout/prompts_expected"] >= 4
        assert row["policy/logp_mismatch_max"] < 1e-4
    assert ["eval/pass@1" in row for row in metrics] == [False, True, False]


def test_tensorboard_holds_the_same_numbers(run, events):
    for row in rows(run):
        for tag in TAGS:
            values = {event.step: event.value for event in events.Scalars(tag)}
            assert values[row["step"]] == pytest.approx(row[tag], rel=1e-5, abs=1e-7)
    assert {0, 2, 3} <= {event.step for event in events.Scalars("eval/pass@1")}


def test_tensorboard_holds_conversations_as_text(events):
    (tag, *_) = [tag for tag in events.Tags()["tensors"] if tag.startswith("conversations/0")]
    texts = [event.tensor_proto.string_val[0].decode() for event in events.Tensors(tag)]
    assert len(texts) == 3
    assert all("assistant" in text and "user" in text for text in texts)


def test_every_steps_rollouts_are_in_a_parquet_file(run):
    files = sorted((run / "rollouts").iterdir())
    assert [file.name for file in files] == [f"step-{step:06d}.parquet" for step in (1, 2, 3)]
    for row, file in zip(rows(run), files, strict=True):
        table = pq.read_table(file).to_pylist()
        assert {"prompt", "response", "reward", "verdict", "context"} <= table[0].keys()
        fresh = [sample for sample in table if not sample["replayed"]]
        assert len(fresh) == 4 * row["rollout/prompts_completed"] - row["grading/timeouts"]
        assert len(table) - len(fresh) == row["replay/added"]
        correct = sum(sample["correct"] for sample in fresh) / len(fresh)
        assert correct == pytest.approx(row["reward/correct"])


def test_a_checkpoint_is_a_hugging_face_model(run):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from algorithms.models.names import resolve_model

    *_, checkpoint = sorted((run / "checkpoints").glob("step_*"))
    assert checkpoint.name == "step_000003"
    model = AutoModelForCausalLM.from_pretrained(checkpoint / "model")
    tokenizer = AutoTokenizer.from_pretrained(checkpoint / "model")
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "1+2"}], tokenize=False, add_generation_prompt=True
    )
    tokens = tokenizer(text, return_tensors="pt", add_special_tokens=False).input_ids
    assert model.generate(tokens, max_new_tokens=8, do_sample=False).shape[1] > tokens.shape[1]
    before = AutoModelForCausalLM.from_pretrained(resolve_model("embedded:tiny"))
    assert model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr()
    moved = [not torch.equal(a, b) for a, b in zip(model.parameters(), before.parameters(), strict=True)]
    assert all(moved)


def test_the_summary_has_exactly_its_keys(run):
    summary = json.loads((run / "summary.json").read_text())
    assert summary.keys() == {"algorithm", "steps", "ended_by", "generated_tokens", "wall_s", "code", "machine", "eval"}
    assert summary["algorithm"] in ("R3GRPO", "r3_grpo")
    assert summary["steps"] == 3
    assert summary["eval"].keys() == {"before", "after"}
    for side in summary["eval"].values():
        assert side.keys() >= {"pass@1", "pass@2", "mean_tokens", "truncated"}
        assert 0 <= side["pass@1"] <= side["pass@2"] <= 1
    assert summary["generated_tokens"] == rows(run)[-1]["throughput/generated_tokens"] > 0


def test_the_evaluations_are_there_with_every_problems_share(run):
    evaluation = json.loads((run / "evaluation.json").read_text())
    summary = json.loads((run / "summary.json").read_text())
    for side, step in (("before", 0), ("after", 3)):
        assert evaluation[side]["step"] == step
        assert evaluation[side]["metrics"] == summary["eval"][side]
        shares = evaluation[side]["correct"]
        assert len(shares) == 6
        assert sum(shares.values()) / 6 == pytest.approx(evaluation[side]["metrics"]["pass@1"])
        examples = evaluation[side]["examples"]
        assert len(examples) == 6  # ten at most
        assert all(one["problem"] and one["response"] and one["correct"] in (True, False) for one in examples)
