"""Wrong input of `python -m algorithms.sft` is one line, and exit code 2."""

import pytest

from algorithms.config.errors import ConfigError
from algorithms.config.loading import load
from algorithms.config.placement import engine_is_on_gpu
from algorithms.finetuning import config as sft_config
from algorithms.finetuning.config import SFTConfig, without_learners
from algorithms.finetuning.trainer import newest_checkpoint
from algorithms.grpo.config import GRPOConfig
from algorithms.preflight.resources import reserved
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.sft import main
from algorithms.train.manifest import write_manifest
from algorithms.train.run_directory import RunDirectory
from algorithms.utils.errors import CheckpointError

from .conftest import BASE, solved, write


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["environment.data=embedded:train"], r"error: sft.solution: embedded:train: row 1: no column 'solution'"),
        (["environment.data=DATA", "sft.solution=solutoin"], "the nearest column is 'solution'"),
        (["environment.data=DATA", "sft.batch_size=10"], "error: sft.micro_batch_size: 4 does not divide"),
        (["environment.data=DATA", "sft.lr=-1"], "error: sft.lr: -1 is not a number > 0"),
        (["environment.data=DATA", "sft.epoch=2"], "error: sft.epoch: no such setting; did you mean sft.epochs?"),
        (["environment.data=DATA", "sft.max_tokens=2"], "error: sft.solution: no query can be trained on (192 longer"),
        (["environment.data=nowhere.jsonl"], "error: environment.data: nowhere.jsonl"),
        (["environment.id=r3env/Mth-v0"], "error: environment.id: 'r3env/Mth-v0' is not registered; did you mean"),
        (["environment.data=DATA", "rl_module.model=nowhere/at-all/x"], "error: rl_module.model: 'nowhere/at-all/x'"),
        (
            ["environment.data=DATA", "rl_module.lora_rank=2", "rl_module.lora_targets=[q_prj]"],
            "error: rl_module.lora_targets: 'q_prj' is not a linear layer of the model",
        ),
        (
            ["environment.data=DATA", "rl_module.lora_rank=2", "rl_module.lora_base=nf4"],
            "error: rl_module.lora_base: a supervised start trains beside weights as they are; fix",
        ),
        (["run.stop.wall_hours=1"], "error: run.stop: has no effect on a supervised start; fix: run.stop={}"),
        (["run.start_from=runs/mine"], "fix: run.start_from=null"),
        (["run.restarts=2"], "error: run.restarts: has no effect on a supervised start; fix: run.restarts=0"),
        (["run.max_generated_tokens=9"], "has no effect on a supervised start; fix: run.max_generated_tokens=0"),
        (["--resume", "nowhere"], "error: --resume: nowhere: no such run folder"),
        (["--resume", ""], "error: --resume: .: not a run directory"),
        (["--resume", "nowhere", "sft.lr=1"], "error: --resume: a resumed run keeps its own configuration"),
    ],
)
def test_wrong_input_is_one_line_that_names_it(arguments, line, data, tmp_path, capsys):
    given = [text.replace("DATA", str(data)) for text in arguments]
    rest = [] if "--resume" in given else [*BASE, f"run.dir={tmp_path}"]
    assert main([*rest, *given]) == 2
    captured = capsys.readouterr()
    assert line in captured.err.splitlines()[-1] and "Traceback" not in captured.err
    assert captured.out == "" and not list(tmp_path.iterdir()), "nothing was begun"


def test_a_missing_extra_is_named_before_anything_is_read(monkeypatch, capsys):
    monkeypatch.setattr(sft_config, "find_spec", lambda name: None if name == "trl" else name)
    assert main(["environment.data=nowhere.jsonl"]) == 2
    assert capsys.readouterr().err == "error: algorithms.sft: trl is not installed; fix: pip install -e '.[sft]'\n"


def test_an_environment_without_columns_takes_no_column(tmp_path, capsys):
    assert main([*BASE, "environment.id=r3env/ReasoningGym-v0", "sft.solution=x", f"run.dir={tmp_path}"]) == 2
    assert "takes no columns" in capsys.readouterr().err


def test_one_row_that_lacks_the_column_is_named(tmp_path, capsys):
    rows = solved()
    del rows[4]["solution"]
    file = write(tmp_path / "lacking.jsonl", rows)
    assert main([*BASE, f"environment.data={file}", f"run.dir={tmp_path}"]) == 2
    assert "row 5: no column 'solution'" in capsys.readouterr().err.splitlines()[-1]


def test_training_skips_the_section_in_a_file_and_refuses_it_as_an_override(tmp_path, capsys):
    file = tmp_path / "shared.yaml"
    file.write_text("sft: {lr: 1.0e-4}\nreplay: {enabled: true}\n")
    load(file, [], GRPOConfig)
    assert f"note: {file}: GRPO skips settings that it does not have: sft, replay" in capsys.readouterr().err
    config, _ = load(file, [], SFTConfig)
    assert config.sft_settings.lr == 1e-4
    with pytest.raises(ConfigError, match=r"sft.lr: R3GRPO has no section sft; python -m algorithms.sft has"):
        load(file, ["sft.lr=1"], R3GRPOConfig)


def test_rows_that_are_lost_stop_a_resume(tmp_path, capsys):
    run = RunDirectory.create(tmp_path, "cut", "algorithm: sft\n")
    for step in (1, 2):
        run.append_metrics({"step": step})
    run.commit(2)
    run.metrics_file.write_text('{"step": 1}\n')
    assert main(["--resume", str(run.path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: {run.metrics_file}: has 12 bytes instead of at least 24; fix: ")


def test_a_damaged_checkpoint_of_the_trainer_is_named_and_one_that_a_kill_tore_passed_over(tmp_path):
    for step in (1, 2, 3):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"weights")
        if step < 3:
            write_manifest(folder)
    newest = newest_checkpoint(tmp_path)
    assert newest == tmp_path / "checkpoint-2"
    (newest / "model.safetensors").write_bytes(b"half")
    with pytest.raises(CheckpointError, match="checkpoint-2: .*damaged, model.safetensors has 4 bytes"):
        newest_checkpoint(tmp_path)


def test_a_file_whose_engines_take_the_adapter_alone_is_one_for_a_supervised_start_too():
    given = ["env_runners.engine=vllm", "env_runners.lora_weights=adapter", "rl_module.lora_rank=16"]
    config, _ = load("configs/quickstart.yaml", given, SFTConfig)
    measured = without_learners(config).apply({"rl_module": {"lora_rank": 0}})
    measured.check_settings()  # that of the trained model, whose adapter is merged


@pytest.mark.parametrize("file", ["deepscaler_r1_7b.yaml", "deepscaler_r1_1p5b_shared.yaml", "own_model_8gpu.yaml"])
def test_a_file_for_several_gpus_is_one_for_a_supervised_start_too(file):
    given = ["env_runners.weight_transfer=ipc"] if file == "own_model_8gpu.yaml" else []
    config, _ = load(f"configs/{file}", given, SFTConfig)
    without_learners(config).check_settings()


def test_the_engine_gets_the_learners_gpu():
    config, _ = load("configs/own_model_1gpu.yaml", [], SFTConfig)
    alone = without_learners(config)
    assert engine_is_on_gpu(alone) and reserved(alone).gpus == 1 and not alone.learners_settings.num_gpus_per_learner
