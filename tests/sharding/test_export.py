"""A run's policy as a folder that transformers and vLLM load."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from algorithms.export import main
from algorithms.learner.group import update_learners
from algorithms.models.names import resolve_model
from algorithms.models.tokenizer import load_tokenizer, stop_token_ids
from algorithms.publishing.model_folder import ExportError, _converted
from algorithms.rollout.engines.base import GenerationRequest
from algorithms.rollout.engines.factory import make_engine
from algorithms.rollout.types import Sampling
from algorithms.train.checkpoints import save_checkpoint
from algorithms.train.manifest import write_manifest
from algorithms.train.tensor_files import tensor_files, write_tensors
from tests.own_learners import policy_state

from .test_learner_group import tiny_rows

PROMPT = np.array([3, 5, 7, 11], np.int32)


@pytest.fixture(scope="module")
def run(module_config, tmp_path_factory):
    """A run with the checkpoints of steps 1 and 2, and the weights of each."""
    folder = tmp_path_factory.mktemp("run")
    algorithm = module_config.build_algo()
    states = {}
    for step in (1, 2):
        update_learners(algorithm.learner_group, tiny_rows(), 1e-2)
        algorithm.steps_done = step
        save_checkpoint(algorithm, folder / "checkpoints")
        states[step] = policy_state(algorithm.learner_group)[1]["default_policy"]
    algorithm.stop()
    return folder, states


@pytest.mark.parametrize(("arguments", "step"), [([], 2), (["--step", "1"], 1)])
def test_transformers_loads_the_weights_of_the_step(run, tmp_path, arguments, step):
    folder, states = run
    assert main([str(folder), str(tmp_path / "out"), *arguments]) == 0
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out").state_dict()
    assert loaded.keys() == states[step].keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in states[step].items())
    assert not torch.equal(states[1]["model.norm.weight"], states[2]["model.norm.weight"])


def test_tokenizer_and_chat_template_come_along(run, tmp_path):
    main([str(run[0]), str(tmp_path / "out")])
    ours, exported = load_tokenizer(resolve_model("embedded:tiny")), AutoTokenizer.from_pretrained(tmp_path / "out")
    messages = [{"role": "user", "content": "1+1="}]
    assert exported.apply_chat_template(messages) == ours.apply_chat_template(messages)
    assert exported.chat_template


def test_what_was_given_to_the_chat_template_comes_along(run, tmp_path, capsys):
    folder = shutil.copytree(run[0], tmp_path / "run")
    kwargs, system = {"enable_thinking": False}, "Be brief."
    sections = {"rl_module": {"chat_template_kwargs": kwargs}, "environment": {"system": system}}
    (folder / "config.yaml").write_text(yaml.safe_dump(sections))
    assert main([str(folder), str(tmp_path / "out")]) == 0
    assert json.loads((tmp_path / "out" / "chat.json").read_text()) == {
        "chat_template_kwargs": kwargs,
        "system": system,
    }
    _, of_template, of_system = capsys.readouterr().out.splitlines()
    assert of_template.endswith("""/out --default-chat-template-kwargs '{"enable_thinking": false}'""")
    assert of_system.endswith("'Be brief.'")
    (folder / "config.yaml").write_text(yaml.safe_dump({"rl_module": {"chat_template_kwargs": {}}}))
    assert main([str(folder), str(tmp_path / "plain")]) == 0
    assert not (tmp_path / "plain" / "chat.json").exists()
    (folder / "config.yaml").write_text("{")
    assert main([str(folder), str(tmp_path / "damaged")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_bfloat16_is_the_weights_type_in_the_file_and_in_the_configuration(run, tmp_path):
    folder, states = run
    assert main([str(folder), str(tmp_path), "--dtype", "bfloat16"]) == 0  # an empty folder will do
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.dtype == torch.bfloat16
    assert all(torch.equal(loaded.state_dict()[name], state.bfloat16()) for name, state in states[2].items())
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")  # tied: the embeddings are the head


def test_a_weight_beyond_float16_is_not_made_infinite(tmp_path):
    write_tensors(tmp_path, "model", [{"weight": torch.tensor([1.0, 7e4])}])
    with pytest.raises(ExportError, match="--dtype: weight has values beyond float16; fix: --dtype bfloat16"):
        list(_converted(tmp_path, "float16", tied=False))
    assert next(_converted(tmp_path, "bfloat16", tied=False))["weight"].dtype == torch.bfloat16


def test_an_export_that_fails_leaves_the_folder_as_it_was_for_the_next_try(tmp_path, capsys):
    model = tmp_path / "run/checkpoints/step_000001/model"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    write_tensors(model, "model", [{"weight": torch.tensor([1.0, 7e4])}])
    write_manifest(model.parent)
    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "new", tmp_path / "empty"):
        was_there = out.exists()
        assert main([str(tmp_path / "run"), str(out), "--dtype", "float16"]) == 2
        assert "fix: --dtype bfloat16" in capsys.readouterr().err
        assert out.exists() == was_there
        assert main([str(tmp_path / "run"), str(out), "--dtype", "bfloat16"]) == 0, "what the line advises"


def test_an_interrupt_is_one_line_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    model = tmp_path / "run/checkpoints/step_000001/model"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    write_tensors(model, "model", [{"weight": torch.ones(2)}])
    write_manifest(model.parent)

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("algorithms.train.tensor_files.write_tensors", interrupted)
    assert main([str(tmp_path / "run"), str(tmp_path / "out")]) == 130
    assert capsys.readouterr().err == "interrupted\n" and not (tmp_path / "out").exists()


@pytest.mark.vllm
@pytest.mark.slow
def test_vllm_loads_it_and_samples_from_the_same_policy(run, tmp_path):
    main([str(run[0]), str(tmp_path / "out")])
    lm = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    engine = make_engine(
        "vllm",
        model=str(tmp_path / "out"),
        dtype="float32",
        max_num_seqs=4,
        eos_token_ids=stop_token_ids(load_tokenizer(str(tmp_path / "out")), str(tmp_path / "out")),
        gpu_memory_utilization=0.2,
        options={"max_model_len": 64, "enforce_eager": True},
    )
    try:
        (completion,) = engine.generate([GenerationRequest(PROMPT, 1, Sampling(1.0, 1.0, 16))])
    finally:
        engine.close()
    tokens = torch.from_numpy(np.concatenate([PROMPT, completion.tokens]).astype(np.int64))[None]
    with torch.no_grad():
        logprobs = lm(input_ids=tokens).logits[0].log_softmax(-1)
    places = torch.arange(len(PROMPT), tokens.shape[1])
    expected = logprobs[places - 1, tokens[0, places]].numpy()
    np.testing.assert_allclose(completion.logprobs, expected, atol=1e-3)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["{nothing}", "{new}"], "error: {nothing}: no such run directory"),
        (
            ["{run}/checkpoints/step_000001", "{new}"],
            "error: {run}/checkpoints/step_000001: is a checkpoint; fix: name its run, {run}, and --step 1",
        ),
        (["{empty}", "{new}"], "error: {empty}: holds no checkpoint; see run.checkpoint_every"),
        (["{run}", "{full}"], "error: {full}: exists and is not an empty folder"),
        (["{run}", "{full}/file"], "error: {full}/file: exists and is not an empty folder"),
        (["{run}", "{new}", "--step", "3"], "error: --step: {run} has no checkpoint of step 3; it has 1, 2"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(run, tmp_path, capsys, arguments, line):
    places = {name: tmp_path / name for name in ("nothing", "new", "empty", "full")} | {"run": run[0]}
    places["empty"].mkdir()
    places["full"].mkdir()
    (places["full"] / "file").write_text("mine")
    assert main([argument.format(**places) for argument in arguments]) == 2
    assert capsys.readouterr().err == line.format(**places) + "\n"
    assert (places["full"] / "file").read_text() == "mine"


def flip_a_bit(file):
    content = bytearray(file.read_bytes())
    content[-100] ^= 1
    file.write_bytes(content)


def test_a_bit_of_the_weights_that_has_flipped_is_found_and_the_one_before_is_named(run, tmp_path, capsys):
    copy = shutil.copytree(run[0], tmp_path / "run")
    later, earlier = (copy / "checkpoints" / f"step_00000{step}" for step in (2, 1))
    flip_a_bit(later / "model" / "model.safetensors")
    trouble = "the checkpoint is damaged, model/model.safetensors has changed since it was written"
    assert main([str(copy), str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"error: {later}: {trouble}; fix: --step 1\n"
    assert not (tmp_path / "out").exists()
    flip_a_bit(earlier / "model" / "model.safetensors")
    assert main([str(copy), str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"error: {later}: {trouble}; no earlier one is intact\n"


def test_weights_that_are_none_are_one_line_too(run, tmp_path, capsys):
    folder = tmp_path / "run" / "checkpoints" / "step_000001"
    (folder / "model").mkdir(parents=True)
    (folder / "state.json").write_text("{}")
    (folder / "model" / "config.json").write_text("{}")
    (folder / "model" / "model.safetensors").write_bytes(b"too short")
    write_manifest(folder)
    assert main([str(tmp_path / "run"), str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {folder}: cannot be exported (")


def test_the_module_is_a_command():
    command = [sys.executable, "-m", "algorithms.export", "nowhere", "out"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert (done.returncode, done.stderr) == (2, "error: nowhere: no such run directory\n")


def test_large_models_are_several_files_with_an_index(tmp_path):
    lm = AutoModelForCausalLM.from_pretrained(resolve_model("embedded:tiny"), dtype=torch.float32)
    state = lm.state_dict()
    names = list(state)
    write_tensors(tmp_path, "model", ({name: state[name] for name in names[i::3]} for i in range(3)))
    lm.config.save_pretrained(tmp_path)
    assert [file.name for file in tensor_files(tmp_path, "model")] == [
        f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)
    ]
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in state.values())
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(loaded[name], state[name]) for name in names)
