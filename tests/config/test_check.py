"""`--check` says what would run where; what is wrong is one line, and Ray is not started for any of it."""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from transformers import AutoTokenizer

from algorithms.config.sections import RunSettings
from algorithms.grpo.config import ConfigError, GRPOConfig
from algorithms.preflight.activations import microbatch_tokens
from algorithms.preflight.check import check, validate_model, validate_start, warn_of_cluster
from algorithms.preflight.context_window import ContextUse
from algorithms.preflight.resources import Resources
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.rollout.engines.vllm import VLLMEngine
from algorithms.train.loop import _build

RUN = RunSettings(name="mine", steps=7)


@pytest.fixture(autouse=True)
def starts_no_ray() -> Iterator[None]:
    before = ray.is_initialized()  # by tests of another folder
    yield
    assert ray.is_initialized() is before


@pytest.fixture
def config(tiny_model, problems) -> R3GRPOConfig:
    return (
        R3GRPOConfig()
        .environment(data=str(problems), instruction="")
        .rl_module(model=str(tiny_model))
        .env_runners(max_response_tokens=64)
    )


def parameters(config: GRPOConfig) -> int:
    facts = validate_model(config)
    assert facts is not None
    return facts.parameters


def report(config: GRPOConfig) -> dict[str, str]:
    lines = check(config, RUN).lines
    assert all(len(line.splitlines()) == 1 for line in lines)
    return {line[:16].strip(): line[16:] for line in lines}


def test_a_model_that_cannot_be_reached_has_bytes_per_parameter_and_is_not_part_of_the_verdict(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    config = GRPOConfig().rl_module(model="o/m", dtype="bfloat16")
    assert report(config)["learner memory"].startswith("18 bytes per parameter (float32 weights, gradients, ")
    assert report(config)["verdict"] == "nothing is missing here; not checked: model"
    config.learners(num_learners=8, sharding="fsdp", num_gpus_per_learner=1)
    assert report(config)["learner memory"].startswith("2 bytes per parameter (shards of float32 weights, ")
    assert report(config)["verdict"] == "NOT ENOUGH here: resources; not checked: model"


def test_the_report_names_what_runs_where(config):
    lines = report(config.training(queries_per_step=2, minibatches=2).evaluation(interval=5, samples=8, limit=2))
    assert lines["algorithm"] == "R3GRPO: replay, reflection, ranking"
    assert lines["run"] == "runs/mine: 7 steps, seed 0, checkpoint every 50 steps and at the end"
    assert lines["step"] == "2 prompt groups × 8 = 16 responses, 2 optimizer steps"
    assert lines["driver"] == "training loop, engine, learner"
    assert lines["env runners"].startswith("in the driver: transformers engine in float32, 128 responses")
    assert lines["resources"].startswith("0 CPUs and 0 GPUs for actors; this machine has ")
    assert f"Qwen2ForCausalLM, {parameters(config):,} parameters, computing in float32" in lines["model"]
    assert lines["environment"].endswith("problems.jsonl: 3 queries, an epoch is 1.5 steps")
    assert lines["evaluation"] == "the training problems: 2 problems × 8 responses, before, after and every 5 steps"
    assert lines["verdict"] == "nothing is missing here"


def test_actors_are_counted(config):
    config.env_runners(num_env_runners=2, num_cpus_per_env_runner=0.5).learners(
        num_learners=1, num_gpus_per_learner=0.5
    )
    lines = report(config)
    assert lines["driver"] == "training loop"
    assert lines["env runners"].startswith("2 × (0.5 CPU, 0 GPU): ")
    assert lines["learners"].startswith("1 × (1 CPU, 0.5 GPU): ")
    assert lines["resources"].startswith("2 CPUs and 0.5 GPUs for actors; ")
    lines = report(config.env_runners(spares=2, num_gpus_per_env_runner=1.0))
    assert lines["env runners"].startswith("2 × (0.5 CPU, 1 GPU) and 2 × (0.5 CPU, 1 GPU) spare: ")
    assert lines["resources"].startswith("3 CPUs and 4.5 GPUs for actors; ")


def test_memory_is_what_its_formulas_say(config):
    lines = report(config.env_runners(max_num_seqs=2000))
    weights = parameters(config) * 4
    assert lines["learner memory"].startswith(
        f"{4 * weights / 2**20:.1f} MiB: float32 weights {weights / 2**20:.1f} MiB"
    )
    # The prompt is "30+30"; keys and values of 3 layers × 2 heads × 4 dimensions.
    at_once = (16 + config.extra_prompts()) * 8
    cache = at_once * (5 + 64) * 2 * 3 * 2 * 4 * 4
    assert lines["engine memory"].endswith(f"cache {cache / 2**20:.1f} MiB of {at_once} × 69 tokens at most")
    assert lines["context"] == "prompt 5 + response 64 = 69 of 512 tokens"
    bfloat = report(config.rl_module(dtype="bfloat16").training(beta=0.1))["learner memory"]
    assert "bfloat16 copies" in bfloat and "reference" in bfloat


def test_a_micro_batch_counts_a_groups_prompt_once_where_it_is_shared(config):
    config.training(group_size=8, queries_per_step=4).learners(token_budget=10**6)
    use = ContextUse(prompt=100, plain=164, longest=164, row=164)
    groups = 4 + config.extra_prompts()
    assert microbatch_tokens(config, use) == (groups * (100 + 8 * 64), False)
    assert microbatch_tokens(config.training(minibatches=2), use) == (groups * (100 + 4 * 64), False)
    assert microbatch_tokens(config.learners(share_prompts=False), use) == (groups * 4 * 164, False)


def test_a_machine_without_the_memory_is_told_what_takes_less(config, monkeypatch):
    assert "NOT ENOUGH" not in report(config)["processes"]
    pages = {"SC_PHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    assert not check(config, RUN).enough
    line = report(config)["processes"]
    assert line.startswith("driver ")
    assert "this machine has 3.9 MiB: NOT ENOUGH; fix: rl_module.gradient_checkpointing=true" in line


def test_an_engine_of_vllm_adds_what_its_libraries_take(config):
    assert "GiB" not in report(config)["processes"].partition(";")[0]
    assert "GiB" in report(config.env_runners(engine="vllm"))["processes"].partition(";")[0]


def test_grpo_has_no_mechanisms(tiny_model, problems):
    config = GRPOConfig().environment(data=str(problems)).rl_module(model=str(tiny_model))
    assert report(config.env_runners(max_response_tokens=8))["algorithm"] == "GRPO"


def test_a_response_that_the_model_has_no_room_for_is_an_error(config):
    config.env_runners(max_response_tokens=508)
    line = (
        r"^env_runners\.max_response_tokens: 508 and prompts of up to 5 tokens are more than the 512 tokens of .*=507$"
    )
    with pytest.raises(ConfigError, match=line):
        check(config, RUN)
    with pytest.raises(ConfigError, match=line):
        validate_start(config)
    validate_start(config.env_runners(max_response_tokens=507))


def test_positions_that_turn_with_the_longest_of_a_batch_are_refused(config, tiny_model, tmp_path):
    """As in Phi-3: engine and learner batch otherwise, so a sequence would have other positions in each."""
    file = Path(shutil.copytree(tiny_model, tmp_path / "copy")) / "config.json"
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.0], "long_factor": [4.0, 4.0]}
    rope["original_max_position_embeddings"] = 64
    file.write_text(json.dumps(json.loads(file.read_text()) | {"rope_parameters": rope}))
    config.rl_module(model=str(file.parent)).env_runners(max_response_tokens=100)
    with pytest.raises(
        ConfigError, match=r"^rl_module\.model: .* more than 64 tokens .*\(longrope\), .*; fix: a smaller env_"
    ):
        validate_start(config)
    validate_start(config.env_runners(max_response_tokens=8).replay(enabled=False).reflection(enabled=False))


@pytest.fixture
def changed(config, tiny_model, tmp_path):
    """The configuration with a copy of the model, and its tokenizer, which is saved there again after a change."""
    folder = Path(shutil.copytree(tiny_model, tmp_path / "copy"))

    def make(change):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        change(tokenizer)
        tokenizer.save_pretrained(folder)
        return config.rl_module(model=str(folder))

    return make


@pytest.mark.parametrize(
    ("change", "token"),
    [
        (lambda tokenizer: tokenizer.add_tokens(["30"]), "30"),
        (lambda tokenizer: tokenizer.add_tokens(["try"]), "try"),
    ],
    ids=["of a prompt", "of the next turn"],
)
def test_a_token_that_the_model_has_no_embedding_for_is_an_error(changed, change, token):
    with_it = changed(change).environment(reflection_guidance="Please try again.")
    model = with_it.rl_module_settings.model
    number = AutoTokenizer.from_pretrained(model).convert_tokens_to_ids(token)
    with pytest.raises(ConfigError) as raised:
        check(with_it, RUN)
    assert str(raised.value) == (
        f"rl_module.model: '{model}': its tokenizer gives token {number}, and the model has embeddings for 98; fix: "
        "model.resize_token_embeddings(len(tokenizer)) of transformers, then save the model there again"
    )
    if token == "try":
        assert check(with_it.reflection(enabled=False), RUN)


def test_a_tokenizer_with_tokens_that_are_never_asked_for_is_none(changed):
    assert check(changed(lambda tokenizer: tokenizer.add_tokens(["never asked for"])), RUN)


def test_a_response_that_nothing_ends_is_an_error(changed):
    endless = changed(lambda tokenizer: setattr(tokenizer, "eos_token", None))
    with pytest.raises(ConfigError) as raised:
        check(endless, RUN)
    line = str(raised.value)
    assert line.startswith(f"rl_module.model: '{endless.rl_module_settings.model}': neither its tokenizer nor its ")
    assert "; fix: set the tokenizer's eos_token" in line


def test_reflection_that_may_not_fit_is_reported(config):
    long = "\n".join(check(config.env_runners(max_response_tokens=500), RUN).lines)
    assert "tokens with further turns, more than the model's" in long
    alone = "\n".join(check(config.reflection(enabled=False), RUN).lines)
    assert "more than the model's" not in alone


def test_missing_gpus_are_reported_by_the_check_and_refused_by_the_start(config, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    config.env_runners(num_env_runners=2, num_gpus_per_env_runner=1)
    assert report(config)["resources"].endswith("and 1 GPU: NOT ENOUGH") and not check(config, RUN).enough
    with pytest.raises(
        ConfigError, match=r"^env_runners\.num_gpus_per_env_runner: .*need 2 GPUs, this machine has 1; "
    ):
        validate_start(config)
    validate_start(config.env_runners(num_gpus_per_env_runner=0.5))


def on_a_machine_with(gpus, monkeypatch, where="this machine"):
    for module in ("check", "description", "fitting", "resources"):
        monkeypatch.setattr(f"algorithms.preflight.{module}.available", lambda: Resources(16, gpus, where))


@pytest.mark.parametrize("where", ["this machine", "the cluster"])
def test_gpus_that_nothing_uses_are_reported_and_warned_of_once(config, monkeypatch, caplog, where):
    on_a_machine_with(2, monkeypatch, where)
    ending = f"{where} has 16 CPUs and 2 GPUs: NONE IS USED; fix: learners.num_gpus_per_learner=1"
    assert report(config)["resources"].endswith(ending)
    assert not caplog.messages
    validate_start(config)
    (warning,) = caplog.messages
    assert warning.startswith(f"{where} has 16 CPUs and 2 GPUs, and the run reserves no GPU: ")
    assert warning.endswith("; fix: learners.num_gpus_per_learner=1")


@pytest.mark.parametrize(
    ("gpus", "reserved"),
    [(0, {}), (1, {"num_gpus_per_learner": 1}), (1, {"num_gpus_per_learner": 0.5, "num_learners": 1})],
)
def test_no_gpu_is_missed_where_there_is_none_or_one_is_used(config, monkeypatch, caplog, gpus, reserved):
    on_a_machine_with(gpus, monkeypatch)
    config.learners(**reserved)
    assert report(config)["resources"].endswith(f"this machine has 16 CPUs and {gpus} GPU{'s' * (gpus != 1)}")
    validate_start(config)
    assert not caplog.messages


def test_a_missing_vllm_is_reported_by_the_check_and_refused_by_the_start(config, monkeypatch):
    monkeypatch.setattr("algorithms.preflight.description.vllm_is_installed", lambda: False)
    monkeypatch.setattr("algorithms.preflight.resources.vllm_is_installed", lambda: False)
    config.env_runners(engine="vllm")
    assert "vLLM is not installed here" in report(config)["env runners"]
    line = r"^env_runners\.engine: 'vllm' is not installed; fix: make install, or .*pip install -e '\.\[vllm\]'; "
    with pytest.raises(ConfigError, match=line):
        validate_start(config)


@pytest.mark.parametrize(
    ("name", "given", "other"), [("learners.moments", "8bit", "float32"), ("rl_module.lora_base", "nf4", "dtype")]
)
def test_what_needs_bitsandbytes_is_refused_without_it(config, monkeypatch, name, given, other):
    monkeypatch.setattr("algorithms.preflight.resources._is_installed", lambda package: package != "bitsandbytes")
    section, _, setting = name.partition(".")
    config.rl_module(lora_rank=4).apply({section: {setting: given}})
    with pytest.raises(
        ConfigError, match=rf"^{name}: bitsandbytes is not installed; fix: pip install .* {name}={other}$"
    ):
        validate_start(config)


def test_an_engine_without_vllm_names_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    for name in ("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_LOGGING_LEVEL", "VLLM_CPU_KVCACHE_SPACE"):
        monkeypatch.setenv(name, "1")  # the engine sets what is missing, and this puts it back
    with pytest.raises(ValueError, match=r"^env_runners\.engine: vllm cannot be imported .*; fix: make install, or "):
        VLLMEngine(model="none", dtype="float32", max_num_seqs=1, eos_token_ids=[0])


def test_a_cluster_is_asked_for_what_it_has(config, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    config.learners(num_learners=3, num_gpus_per_learner=1)
    unknown = "the cluster's resources are read when the run joins it"
    assert report(config)["resources"] == f"3 CPUs and 3 GPUs for actors; {unknown}"
    validate_start(config)
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 64.0, "GPU": 2.0})
    assert report(config)["resources"].endswith("the cluster has 64 CPUs and 2 GPUs: NOT ENOUGH")
    with pytest.raises(ConfigError, match=r"^learners\.num_gpus_per_learner: .*need 3 GPUs, the cluster has 2; "):
        validate_start(config)


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (Resources(64, 2, "the cluster"), "has 64 CPUs and 2 GPUs, and the run reserves 3 CPUs and 3 GPUs: it waits "),
        (Resources(2, 8, "the cluster"), "has 2 CPUs and 8 GPUs, and the run reserves 3 CPUs and 3 GPUs: it waits "),
        (Resources(64, 8, "the cluster"), None),
    ],
)
def test_a_joined_cluster_that_has_not_enough_is_warned_of_as_nodes_may_yet_join(
    config, monkeypatch, caplog, there, said
):
    monkeypatch.setattr("algorithms.preflight.check.available", lambda: there)
    warn_of_cluster(config.learners(num_learners=3, num_gpus_per_learner=1))
    assert [said in message for message in caplog.messages] == ([] if said is None else [True])


@pytest.mark.parametrize("start", ["command", "python"])
def test_a_cluster_that_may_grow_is_joined_and_waited_for(config, monkeypatch, caplog, start):
    """What it has is known when it has been joined; refusing the run then would rule out autoscaling."""

    def join(config):
        for module in ("check", "fitting", "resources"):
            monkeypatch.setattr(f"algorithms.preflight.{module}.available", lambda: Resources(2, 0, "the cluster"))
        return True

    monkeypatch.setenv("RAY_ADDRESS", "auto")
    monkeypatch.setattr("algorithms.preflight.ray_session.start_ray", join)
    monkeypatch.setattr("algorithms.train.ray_watch.start_ray", join)
    monkeypatch.setattr("algorithms.train.loop.interrupt_on_sigterm", lambda: None)
    monkeypatch.setattr("algorithms.train.ray_watch.interrupt_on_sigterm", lambda: None)
    monkeypatch.setattr(R3GRPOConfig, "build_checked", lambda config, use_copy=True: "built")
    config.learners(num_learners=3, num_gpus_per_learner=1)
    if start == "python":
        assert config.build_algo() == "built"
    else:
        validate_start(config)
        assert _build(config, seed=0) == "built"
    assert ["it waits for nodes to join" in message for message in caplog.messages] == [True]


def test_a_joined_cluster_whose_gpus_nobody_uses_is_warned_of(config, monkeypatch, caplog):
    monkeypatch.setattr("algorithms.preflight.check.available", lambda: Resources(64, 8, "the cluster"))
    warn_of_cluster(config)
    assert "the run reserves no GPU" in caplog.text


def test_nothing_starts_ray(config):
    check(config, RUN)
    validate_start(config)


@pytest.mark.parametrize(
    ("section", "settings", "said"),
    [
        (
            "environment",
            {"env": "CartPole-v1", "data": None, "instruction": None},
            "environment.id: 'CartPole-v1' is not a r3env.core.VerifiableEnv",
        ),
        ("environment", {"data": "nowhere.jsonl"}, "environment.data: "),
        ("env_runners", {"max_response_tokens": 10**6}, "env_runners.max_response_tokens: 1000000 and prompts"),
        ("rl_module", {"model": "/nowhere"}, "rl_module.model: '/nowhere' is neither a folder nor a Hub id"),
        ("env_runners", {"num_gpus_per_env_runner": 64}, "env_runners.num_gpus_per_env_runner: "),
    ],
)
def test_an_algorithm_that_is_built_in_python_is_checked_as_the_command_checks_it(config, section, settings, said):
    with pytest.raises(ConfigError) as raised:
        getattr(config, section)(**settings).build_algo()
    assert str(raised.value).startswith(said)


def test_vllms_context_has_to_hold_a_prompt_and_its_response(config):
    vllm = config.env_runners(engine="vllm", vllm={"max_model_len": 66})
    with pytest.raises(ConfigError, match=r"^env_runners.vllm.max_model_len: 66 tokens do not hold .* responses of 64"):
        check(vllm, RUN)
    assert check(config.env_runners(engine="vllm", vllm={"max_model_len": 200}), RUN)
    assert check(config.env_runners(engine="transformers", vllm={"max_model_len": 66}), RUN)


def test_vllms_hottest_temperature(config):
    for key, hot in (
        ("env_runners", config.copy(copy_frozen=False).env_runners(engine="vllm", temperature=2.5)),
        ("evaluation", config.copy(copy_frozen=False).env_runners(engine="vllm").evaluation(temperature=2.5)),
    ):
        with pytest.raises(ConfigError, match=f"^{key}.temperature: vLLM samples at temperatures up to 2, not 2.5"):
            check(hot, RUN)
    assert check(config.env_runners(engine="transformers", temperature=2.5), RUN)
