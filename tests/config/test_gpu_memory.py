"""What each shipped layout asks of its GPUs, computed from the models' sizes, without the models."""

import functools
import re
from dataclasses import replace
from pathlib import Path

import pytest

from algorithms import sft
from algorithms.config.errors import ConfigError
from algorithms.config.files import configs_folder
from algorithms.config.loading import load
from algorithms.config.machine import RLModuleSettings
from algorithms.config.placement import Placement, placement, transfer_kind
from algorithms.models.names import ModelFacts
from algorithms.preflight import check, fitting, gpus, memory, resources
from algorithms.preflight.activations import _OF_ACTIVATIONS, _kept_a_token, activation_bytes
from algorithms.preflight.context_window import ContextUse
from algorithms.preflight.description import Line, _gpu_lines, _place_lines
from algorithms.preflight.fitting import gpu_shortage, ways_to_fit
from algorithms.preflight.gpus import FoundGPUs, count_for_card
from algorithms.preflight.memory import gpu_memory, learner_bytes, learner_peak, least_gpu_bytes
from algorithms.preflight.resources import Resources, reserved
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.train.exit_codes import DONE, WRONG_INPUT
from algorithms.train.main import main
from website.memory import sized

SMALL = ModelFacts("1.5B", "Qwen2ForCausalLM", 1_777_088_000, 28, 2, 128, 131_072)
LARGE = ModelFacts("7B", "Qwen2ForCausalLM", 7_615_616_512, 28, 4, 128, 131_072)
LAYOUTS = {
    "deepscaler_r1_1p5b_1gpu.yaml": (SMALL, 1, Placement.ONE_PROCESS, "in_process"),
    "deepscaler_r1_1p5b.yaml": (SMALL, 8, Placement.OWN_GPUS, "nccl"),
    "deepscaler_r1_1p5b_shared.yaml": (SMALL, 8, Placement.SHARED_GPUS, "ipc"),
    "deepscaler_r1_1p5b_16gpu.yaml": (SMALL, 16, Placement.OWN_GPUS, "nccl"),
    "deepscaler_r1_7b.yaml": (LARGE, 8, Placement.OWN_GPUS, "nccl"),
    "deepscaler_r1_7b_16gpu.yaml": (LARGE, 16, Placement.OWN_GPUS, "nccl"),
    "paper_r1_1p5b.yaml": (SMALL, 8, Placement.OWN_GPUS, "nccl"),
    "paper_r1_7b.yaml": (LARGE, 8, Placement.OWN_GPUS, "nccl"),
}
GPU = 80e9


def resolve_config(name, *overrides):
    return load(configs_folder() / name, overrides, R3GRPOConfig)[0]


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_shipped_layout_uses_its_gpus_and_leaves_room_on_them(name):
    model, gpus, where, kind = LAYOUTS[name]
    config = resolve_config(name)
    assert round(reserved(config).gpus, 6) == gpus
    assert placement(config) == where
    assert transfer_kind(config) == kind
    assert model.name in config.rl_module_settings.model
    assert 0.2 * GPU < least_gpu_bytes(config, model) < 0.9 * GPU
    assert "at least" in gpu_memory(config, model)


def test_every_layout_of_a_real_model_is_in_the_table():
    assert {path.name for prefix in ("deepscaler", "paper_") for path in configs_folder().glob(f"{prefix}*")} == {
        *LAYOUTS
    }


def test_a_learner_holds_sixteen_bytes_a_parameter_and_what_it_computes_with():
    config = resolve_config("deepscaler_r1_1p5b.yaml")
    assert least_gpu_bytes(config, SMALL) == 18 * SMALL.parameters
    assert least_gpu_bytes(config.rl_module(dtype="float32"), SMALL) == 16 * SMALL.parameters


def test_the_large_model_needs_shards():
    config = resolve_config("deepscaler_r1_7b.yaml")
    assert least_gpu_bytes(config, LARGE) == 4 * LARGE.parameters
    assert least_gpu_bytes(config.learners(sharding="none"), LARGE) > GPU


def test_a_shared_gpu_has_room_for_both_phases():
    config = resolve_config("deepscaler_r1_1p5b_shared.yaml")
    rest, update = 12 * SMALL.parameters, 18 * SMALL.parameters
    assert least_gpu_bytes(config, SMALL) == pytest.approx(rest / 0.55, rel=1e-6)
    sleeps = config.copy(copy_frozen=False).env_runners(gpu_memory_utilization=0.2)
    assert least_gpu_bytes(sleeps, SMALL) == pytest.approx(update, rel=1e-6)
    awake = config.copy(copy_frozen=False).env_runners(sleep_while_training=False)
    assert least_gpu_bytes(awake, SMALL) == pytest.approx(update / 0.55, rel=1e-6)
    assert least_gpu_bytes(config.env_runners(gpu_memory_utilization=0.05), SMALL) == pytest.approx(
        2 * SMALL.parameters / 0.05, rel=1e-6
    )


def test_the_shared_layout_goes_on_top_of_the_large_model():
    files = [configs_folder() / name for name in ("deepscaler_r1_7b.yaml", "deepscaler_r1_1p5b_shared.yaml")]
    config = load(files, [], R3GRPOConfig)[0]
    assert config.rl_module_settings.model.endswith("7B")
    assert placement(config) is Placement.SHARED_GPUS
    assert least_gpu_bytes(config, LARGE) == pytest.approx(2 * LARGE.parameters / 0.45, rel=1e-6)


def test_without_gpus_there_is_nothing_to_need():
    config = resolve_config("quickstart.yaml")
    assert least_gpu_bytes(config, SMALL) == 0
    assert [row[0] for row in _gpu_lines(config, SMALL)] == ["placement"]


@pytest.fixture
def machine(monkeypatch):
    """A machine whose smallest GPU has so many GiB; None: its driver does not answer."""

    def make(gib, where="this machine"):
        found = None if gib is None else FoundGPUs("580.65.06", int(gib * 2**30))
        monkeypatch.setattr(fitting, "available", lambda: Resources(16, 8, where))
        monkeypatch.setattr(fitting, "found_gpus", lambda: found)

    return make


def gpu_row(config, model):
    (row,) = (row for row in _gpu_lines(config, model) if row[0] == "each GPU")
    return row


def test_the_check_fails_and_the_start_warns_where_a_gpu_is_too_small(machine, caplog):
    config = resolve_config("deepscaler_r1_1p5b_1gpu.yaml")
    needed = least_gpu_bytes(config, SMALL) / 2**30
    machine(needed + fitting.CUDA_BYTES / 2**30 + 0.1)
    assert gpu_row(config, SMALL).enough
    check._warn_of_small_gpus(config, SMALL)
    assert not caplog.messages
    machine(24)
    row = gpu_row(config, SMALL)
    assert isinstance(row, Line) and not row.enough
    assert f"at least {needed:.1f} GiB" in row.text
    assert "the smallest GPU here has 24.0 GiB, 1.5 GiB of it for CUDA: NOT ENOUGH; fix: learners.mom" in row.text
    assert "fix: learners.moments=8bit (19.9 GiB), or rl" in row.text
    check._warn_of_small_gpus(config, SMALL)
    (warning,) = caplog.messages
    assert "the smallest GPU here has 24.0 GiB" in warning and f"at least {needed:.1f} GiB" in warning
    assert gpu_row(config.rl_module(lora_rank=16), SMALL).enough


def without_activations(monkeypatch, per_token=0):
    """Count so many bytes a token, half of them with recomputed activations; there is no model here."""

    def count(config, model, use):
        recomputes = 2 if config.rl_module_settings.gradient_checkpointing else 1
        return min(config.learners_settings.token_budget, 65_536) * per_token // recomputes

    monkeypatch.setattr(fitting, "activation_bytes", count)
    monkeypatch.setattr(fitting, "microbatch_tokens", lambda config, use: (config.learners_settings.token_budget, True))


def test_every_way_that_is_named_makes_the_run_fit_and_says_what_it_then_needs(monkeypatch):
    without_activations(monkeypatch, per_token=500_000)
    use, card = ContextUse(prompt=500, plain=8700, longest=8700, row=8700), 40 * 2**30
    config = resolve_config(
        "deepscaler_r1_1p5b_1gpu.yaml", "rl_module.gradient_checkpointing=false", "learners.token_budget=32768"
    )
    assert fitting.needed_gpu_bytes(config, SMALL, use) > card
    ways = ways_to_fit(config, SMALL, use, card).split(", or ")
    assert ways
    for way in ways:
        settings, needed = re.fullmatch(r"(.*) \(([\d.]+) GiB\)", way).groups()
        changed = resolve_config(
            "deepscaler_r1_1p5b_1gpu.yaml",
            "rl_module.gradient_checkpointing=false",
            "learners.token_budget=32768",
            *re.split(", | and ", settings),
        )
        count = fitting.needed_gpu_bytes(changed, SMALL, use)
        assert count <= card and f"{count / 2**30:.1f}" == needed


def test_where_no_setting_suffices_the_check_says_how_far_they_all_go():
    text = ways_to_fit(resolve_config("deepscaler_r1_7b.yaml", "learners.sharding=none"), LARGE, None, 8 * 2**30)
    assert text.startswith("a smaller model")
    assert text.endswith(
        "rl_module.lora_rank=16 and rl_module.lora_base=nf4 alone leave it at "
        f"{2 * LARGE.parameters / 0.92 / 2**30:.1f} GiB"
    )


def test_activations_count_in_the_update_and_not_while_engines_generate():
    config = resolve_config("deepscaler_r1_1p5b_1gpu.yaml")
    generating, activations = least_gpu_bytes(config, SMALL), 20 * 2**30
    assert least_gpu_bytes(config, SMALL, 2**20) == generating
    assert least_gpu_bytes(config, SMALL, activations) == learner_peak(config, SMALL, activations, several=True)


@pytest.mark.parametrize(("gib", "where"), [(None, "this machine"), (0, "this machine"), (24, "the cluster")])
def test_a_gpu_whose_size_is_unknown_is_not_too_small(machine, gib, where):
    machine(gib, where)
    assert gpu_shortage(resolve_config("deepscaler_r1_1p5b_1gpu.yaml"), SMALL) == ""


def test_the_guide_names_the_memory_that_the_check_prints_for_each_model():
    page = (Path(__file__).parents[2] / "docs/guides/own-model.md").read_text()
    rows = re.findall(r"^\| `(Qwen/\S+)` \| ([\d,]+) \| ([\d.]+) GiB \| ([\d.]+) GiB \|", page, re.MULTILINE)
    assert len(rows) == 3
    for name, parameters, full, lora in rows:
        with sized(name) as (model, folder):
            assert f"{model.parameters:,}" == parameters
            for rank, size in ((0, full), (16, lora)):
                settings = [f"rl_module.model={folder}", f"rl_module.lora_rank={rank}"]
                assert f"at least {size} GiB" in gpu_memory(resolve_config("own_model_1gpu.yaml", *settings), model)


def test_an_adapter_is_counted_with_its_gradients_and_moments():
    with sized("Qwen/Qwen3-0.6B") as (model, folder):
        config = resolve_config("own_model_1gpu.yaml", f"rl_module.model={folder}", "rl_module.lora_rank=16")
    layer = 2 * (1024 + 2048) + 2 * (1024 + 1024) + 3 * (1024 + 3072)  # q and o, k and v, the three of the MLP
    assert learner_bytes(config, model)["adapter"] == 16 * (28 * 16 * layer)
    assert learner_bytes(config, model, at_rest=True)["adapter"] == 12 * (28 * 16 * layer)
    config.rl_module(lora_targets=["self_attn.q_proj", "v_proj"])
    assert learner_bytes(config, model)["adapter"] == 16 * (28 * 16 * (1024 + 2048 + 1024 + 1024))


@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
def test_the_float32_gradient_of_a_trained_head_is_counted(weights):
    use = ContextUse(prompt=100, plain=400, longest=400, row=400)
    with sized("Qwen/Qwen3-0.6B") as (model, folder):
        config = resolve_config("own_model_1gpu.yaml", f"rl_module.model={folder}", f"learners.weights={weights}")
        counted = activation_bytes(config, model, use)
        assert counted - activation_bytes(config, replace(model, head=0), use) == 4 * 151_936 * 1024
        adapted = config.rl_module(lora_rank=16)
        assert activation_bytes(adapted, model, use) == activation_bytes(adapted, replace(model, head=0), use)


def test_copies_of_the_weights_are_no_activations():
    """They do not grow with a micro-batch's tokens, and `learner_bytes` counts them."""
    with sized("Qwen/Qwen3-0.6B") as (model, folder):
        whole = RLModuleSettings(model=str(folder), dtype="bfloat16")
        in_float32 = whole.changed("rl_module", {"dtype": "float32"})
        half, single = (
            _kept_a_token(module.model_dump_json(include=_OF_ACTIVATIONS), True, 1, 512)
            for module in (whole, in_float32)
        )
    assert 0.5 * single < half < 0.7 * single  # norms compute in float32


def test_the_layer_that_backward_recomputes_is_counted():
    use = ContextUse(prompt=100, plain=2_000, longest=2_000, row=2_000)
    with sized("Qwen/Qwen3-0.6B") as (model, folder):
        small = replace(model, vocabulary=1, head=0)  # else logits, which are gone by then, are as large
        recomputed, kept = (
            activation_bytes(
                resolve_config(
                    "own_model_1gpu.yaml", f"rl_module.model={folder}", f"rl_module.gradient_checkpointing={on}"
                ),
                small,
                use,
            )
            for on in ("true", "false")
        )
    assert kept / 28 < recomputed < kept / 28 + kept / 10


def test_the_transformers_engines_cache_is_counted(four_billion):
    config, model = four_billion(24, "env_runners.engine=transformers", "env_runners.max_response_tokens=4000")
    at_once = memory.responses_at_once(config, None)
    cache = model.cache_bytes(at_once * 4_096, "bfloat16")
    assert least_gpu_bytes(config, model) > cache > 2**30
    assert f"weights and {memory.gib(cache)} cache for an engine" in memory.gpu_memory(config, model)
    assert "NOT ENOUGH" in gpu_shortage(config, model, None)


@pytest.fixture
def four_billion(monkeypatch):
    """Configuration and size of Qwen3-4B with an adapter and vLLM, checked on a GPU of so many GiB."""

    def make(gib, *settings):
        found = FoundGPUs("580.65.06", int(gib * 2**30))
        for module in (fitting, memory):
            monkeypatch.setattr(module, "found_gpus", lambda: found)
        monkeypatch.setattr(fitting, "available", lambda: Resources(16, 1, "this machine"))
        with sized("Qwen/Qwen3-4B") as (model, folder):
            named = [f"rl_module.model={folder}", "rl_module.lora_rank=16", *settings]
            config = resolve_config("own_model_1gpu.yaml", *named)
        config.measured.engine_length = 4_096
        return config, model

    return make


USE = ContextUse(prompt=500, plain=4_096, longest=4_096, row=4_096)


def test_where_a_larger_share_leaves_no_room_for_the_learner_a_smaller_learner_is_the_fix(four_billion, monkeypatch):
    without_activations(monkeypatch)
    config, model = four_billion(16)
    with pytest.raises(ConfigError) as raised:
        fitting.validate_cache(config, model, USE)
    line = str(raised.value)
    assert line.startswith("env_runners.gpu_memory_utilization: leaves ") and "NOT ENOUGH; fix: " in line
    assert "rl_module.lora_base=nf4" in line


OWN_GPUS = (
    *("env_runners.num_env_runners=1", "env_runners.num_gpus_per_env_runner=1"),
    *("learners.num_learners=1", "learners.num_gpus_per_learner=1"),
)


@pytest.mark.parametrize("more", [(), OWN_GPUS], ids=["shared", "own"])
@pytest.mark.parametrize("key", ["env_runners.gpu_memory_utilization", "env_runners.vllm.gpu_memory_utilization"])
def test_a_larger_share_is_the_fix_of_a_share_that_is_too_small(four_billion, monkeypatch, key, more):
    without_activations(monkeypatch)
    config, model = four_billion(80, f"{key}=0.1", *more)
    with pytest.raises(ConfigError, match=rf"^{key}: leaves .*; fix: {key}=0\.2 "):
        fitting.validate_cache(config, model, USE)


def test_what_a_learner_lacks_on_its_gpu_is_no_fix_for_the_cache_of_an_engine_on_the_cpu(four_billion, monkeypatch):
    without_activations(monkeypatch)
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "0")
    config, model = four_billion(16)
    monkeypatch.setattr(memory, "engine_is_on_gpu", lambda config: False)
    monkeypatch.setattr(fitting, "engine_is_on_gpu", lambda config: False)
    assert gpu_shortage(config.learners(num_gpus_per_learner=1), replace(model, parameters=10**10), USE)
    with pytest.raises(ConfigError, match=r"^VLLM_CPU_KVCACHE_SPACE: leaves 0\.00 GiB .*; fix: 1, or a shorter"):
        fitting.validate_cache(config, replace(model, parameters=10**10), USE)


def test_a_gpu_has_room_for_the_cache_of_one_sequence_where_its_length_is_known(four_billion):
    config, model = four_billion(80, "env_runners.gpu_memory_utilization=0.1")
    share = (2 * model.parameters + model.cache_bytes(4_096, "bfloat16")) / 0.1
    assert least_gpu_bytes(config, model) == pytest.approx(share, rel=1e-6)


@pytest.mark.parametrize(("gpus", "enough"), [(1, False), (0, True)])
def test_a_driver_that_is_too_old_is_missing_where_gpus_are_reserved(monkeypatch, gpus, enough):
    monkeypatch.setattr(resources, "found_gpus", lambda: FoundGPUs("470.82.01", 80 * 2**30))
    monkeypatch.setattr(resources, "toolkit", lambda: "13.0")
    config = resolve_config("own_model_1gpu.yaml", f"learners.num_gpus_per_learner={gpus}")
    config.env_runners(num_gpus_per_env_runner=gpus)
    (row,) = (row for row in _place_lines(config) if row[0] == "driver of GPUs")
    assert "NOT USABLE: CUDA 13.0" in row.text and row.enough is enough


def test_an_engine_in_int8_takes_a_byte_for_each_weight_of_its_linear_layers():
    with sized("Qwen/Qwen3-4B") as (model, folder):
        halves, bytes_ = (
            resolve_config("own_model_1gpu.yaml", f"rl_module.model={folder}", *more)
            for more in ([], ["env_runners.vllm={quantization: r3_int8}"])
        )
    (engine,) = (row[1] for row in _place_lines(bytes_) if row[0] == "env runners")
    assert "vllm engine in bfloat16 and int8, " in engine
    saved = memory.engine_weights(halves, model) - memory.engine_weights(bytes_, model)
    assert saved == model.weights_under_adapter(()) > 0.8 * model.parameters


@pytest.fixture
def no_other_card():
    yield
    gpus._other_cards.clear()


def test_the_check_counts_for_a_card_that_is_not_here(no_other_card):
    config = resolve_config("deepscaler_r1_1p5b_1gpu.yaml")
    count_for_card("24", checks=True)
    row = gpu_row(config, SMALL)
    assert not row.enough and "; the card has 24.0 GiB, 1.5 GiB of it for CUDA: NOT ENOUGH; fix: " in row.text
    (here,) = (row for row in _place_lines(config) if row[0] == "resources")
    assert here.enough and here.text.endswith("counted for cards of 24.0 GiB, not for this machine's")
    count_for_card("80", checks=True)
    assert gpu_row(config, SMALL).enough
    assert not [row for row in _place_lines(config) if row[0] in ("driver of GPUs", "GPU")]


@pytest.mark.parametrize("given", ["x", "0", "-1", "nan", "inf", "1e30", "24GiB"])
def test_what_is_no_size_of_a_card_is_refused(given, no_other_card):
    with pytest.raises(ConfigError, match=r"^--card: .*; fix: .*--card 22\.5"):
        count_for_card(given, checks=True)
    assert gpus.other_card() is None


@pytest.mark.parametrize("command", [functools.partial(main, "grpo"), sft.main])
def test_a_card_is_for_the_check_alone(command, capsys):
    assert command(["--card", "24"]) == WRONG_INPUT
    assert capsys.readouterr().err.startswith("error: --card: is for --check alone; fix: add --check")


@pytest.mark.parametrize("given", [[], ["learners.num_gpus_per_learner=1"]])
def test_the_command_counts_for_the_card(given, no_other_card, capsys):
    assert main("grpo", ["--check", "--card", "24", "run.dir=/tmp", *given]) == DONE
    said = "counted for cards of 24.0 GiB, not for this machine's" + (": NONE IS USED" if not given else "")
    assert said in capsys.readouterr().out
