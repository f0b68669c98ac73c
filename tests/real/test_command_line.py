"""A run of a real model as a user starts it: killed, resumed, exported, published, reported."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator
from transformers import AutoModelForCausalLM

from algorithms.evaluation.responses import ResponseFolder
from algorithms.models.tokenizer import load_tokenizer, stop_token_ids
from algorithms.rollout.engines.base import GenerationRequest
from algorithms.rollout.engines.factory import make_engine
from algorithms.rollout.types import Sampling
from r3env.chat import first_turn
from tests.command_line.conftest import rows, untimed
from tests.hub_stand_in import running_hub
from tests.trackers.conftest import surroundings as offline
from tests.trackers.stores import mlflow_points, trackio_points, wandb_points

from .conftest import RESPONSE_LIMIT

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
LIMIT_S = 600
PRESETS = {"gsm8k": "gsm8k_test", "svamp": "svamp", "mawps": "mawps"}


def settings(real_model, problems, name, folder):
    return [
        f"rl_module.model={real_model}",
        *("environment.id=r3env/Function-v0", f"environment.data={problems}", "environment.instruction="),
        *("environment.options.reward=tests.real.rewards:variety", f"env_runners.max_response_tokens={RESPONSE_LIMIT}"),
        *("training.group_size=2", "training.queries_per_step=2", "training.warmup_steps=0", "training.lr=1e-5"),
        *(
            "run.steps=2",
            "run.checkpoint_every=1",
            "run.keep_checkpoints=1",
            "reward.length_bonus=0",
            "evaluation.data=null",
        ),
        *(f"run.dir={folder}", f"run.name={name}"),
    ]


def surroundings(**variables):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**kept, "PYTHONPATH": str(ROOT), **variables}


def call(*command, cwd=ROOT, **variables):
    done = subprocess.run(
        [sys.executable, "-m", *command],
        env=surroundings(**variables),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def run(real_model, problems, tmp_path_factory):
    """A run of two steps that nobody disturbed, in every tracker."""
    for package in ("wandb", "mlflow", "trackio"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("runs")
    more = ["run.trackers=[tensorboard,wandb,mlflow,trackio]", "run.checkpoint_every=2"]
    call("algorithms.grpo", *settings(real_model, problems, "whole", folder), *more, cwd=folder, **offline(folder))
    yield folder / "whole"
    shutil.rmtree(folder)


@pytest.mark.slow
def test_a_killed_run_is_resumed_into_the_one_that_was_not(run, real_model, problems, scratch):
    command = [sys.executable, "-m", "algorithms.grpo", *settings(real_model, problems, "cut", scratch)]
    process = subprocess.Popen(
        command, env=surroundings(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    first = scratch / "cut" / "checkpoints" / "step_000001"
    deadline = time.monotonic() + LIMIT_S
    while not first.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    os.killpg(process.pid, signal.SIGKILL)
    output = process.communicate(timeout=LIMIT_S)
    assert process.returncode == -signal.SIGKILL and first.exists(), output
    call("algorithms.grpo", "--resume", str(scratch / "cut"))
    assert [untimed(row) for row in rows(scratch / "cut")] == [untimed(row) for row in rows(run)]
    weights, expected = (
        load_file(folder / "checkpoints/step_000002/model/model.safetensors") for folder in (scratch / "cut", run)
    )
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())


def test_every_tracker_has_the_steps(run):
    expected = [(row["step"], pytest.approx(row["reward/mean"])) for row in rows(run)]
    events = EventAccumulator(str(run), {SCALARS: 0})
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("reward/mean")] == expected
    assert wandb_points(run, "reward/mean") == expected
    assert mlflow_points(run.parent / "mlflow.db", "reward/mean") == expected
    assert trackio_points(run.parent / "trackio", "reward/mean") == expected


@pytest.fixture(scope="module")
def exported(run, tmp_path_factory):
    """The run's policy, and the stand-in of the Hub that it was pushed to."""
    out = tmp_path_factory.mktemp("exported") / "out"
    with running_hub() as hub:
        variables = {"HF_ENDPOINT": hub.url, "HF_TOKEN": hub.token, "HF_HOME": str(out.parent), "HF_HUB_OFFLINE": "0"}
        call("algorithms.export", str(run), str(out), "--push", "somebody/mine", HF_HUB_DISABLE_XET="1", **variables)
        yield out, hub
    shutil.rmtree(out)


def test_the_export_is_pushed_whole(exported):
    out, hub = exported
    assert hub.files["somebody/mine"] == {file.name: file.read_bytes() for file in out.iterdir()}
    assert {"README.md", "config.json", "tokenizer.json", "model.safetensors"} <= hub.files["somebody/mine"].keys()


@pytest.mark.vllm
def test_vllm_and_transformers_load_the_export_with_equal_log_probs(exported):
    out = str(exported[0])
    tokenizer = load_tokenizer(out)
    prompt = np.array(first_turn(tokenizer, [{"role": "user", "content": "What is 2 + 3?"}]), np.int32)
    engine = make_engine(
        "vllm",
        model=out,
        dtype="float32",
        max_num_seqs=4,
        eos_token_ids=stop_token_ids(tokenizer, out),
        gpu_memory_utilization=0.2,
        options={"max_model_len": 128, "enforce_eager": True},
    )
    try:
        (completion,) = engine.generate([GenerationRequest(prompt, 1, Sampling(1.0, 1.0, RESPONSE_LIMIT))])
    finally:
        engine.close()
    lm = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    tokens = torch.from_numpy(np.concatenate([prompt, completion.tokens]).astype(np.int64))[None]
    with torch.no_grad():
        logprobs = lm(input_ids=tokens).logits[0].log_softmax(-1)
    places = torch.arange(len(prompt), tokens.shape[1])
    expected = logprobs[places - 1, tokens[0, places]].numpy()
    np.testing.assert_allclose(completion.logprobs, expected, atol=1e-3)


@pytest.mark.skipif(not os.environ.get("R3_REAL"), reason="R3_REAL names no folder of real files")
def test_real_problems_are_evaluated_by_their_presets(real_model, tmp_path):
    sources = [f"--data={name}=preset:{name}:{os.environ['R3_REAL']}/{file}.jsonl" for name, file in PRESETS.items()]
    limits = ["evaluation.limit=2", f"env_runners.max_response_tokens={RESPONSE_LIMIT}"]
    asked = [f"--model={real_model}", "--engine=transformers", "--samples=2", "--out", str(tmp_path / "out")]
    call("algorithms.evaluate", *asked, *sources, *limits)
    scores = json.loads((tmp_path / "out" / "scores.json").read_text())
    assert scores.keys() >= PRESETS.keys()
    responses = ResponseFolder(tmp_path / "out" / "responses").read()
    assert Counter(one.benchmark for one in responses) == dict.fromkeys(PRESETS, 4)


def test_the_report_shows_what_the_model_wrote(run):
    call("algorithms.report", str(run))
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "Write a short text about bees." in page
