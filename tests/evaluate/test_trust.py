"""`--model RUN`: a run folder may come from somebody else, and its config.yaml runs nothing without the user's word."""

import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from algorithms.config.errors import ConfigError
from algorithms.evaluate import main
from algorithms.models.names import resolve_model
from algorithms.train.manifest import write_manifest

MODULE = "environment_of_a_stranger"
FOREIGN = f"{MODULE}:Stranger-v0"
SETTINGS = {
    "environment": {"data": "embedded:train"},
    "evaluation": {"data": "embedded:heldout", "samples": 1, "k": [1], "limit": 2},
    "env_runners": {"max_response_tokens": 4},
}


@pytest.fixture
def shared(tmp_path):
    """Makes a run folder as somebody might share it, of a configuration and files beside the model."""

    def make(sections, files=()):
        checkpoint = tmp_path / "shared" / "checkpoints" / "step_000001"
        model = Path(shutil.copytree(resolve_model("embedded:tiny"), checkpoint / "model"))
        for name, text in files:
            (model / name).write_text(text)
        (checkpoint / "state.json").write_text("{}")
        write_manifest(checkpoint)
        merged = {name: SETTINGS.get(name, {}) | sections.get(name, {}) for name in {**SETTINGS, **sections}}
        (tmp_path / "shared" / "config.yaml").write_text(yaml.safe_dump({"algorithm": "r3_grpo", **merged}))
        return tmp_path / "shared"

    return make


@pytest.fixture
def marker(tmp_path, monkeypatch):
    """What the attacks leave behind when they succeed; a module that could be imported is one of them."""
    path = tmp_path / "was_here"
    (tmp_path / f"{MODULE}.py").write_text(f"open({str(path)!r}, 'w')\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield path
    sys.modules.pop(MODULE, None)


@pytest.fixture
def configured(monkeypatch, tmp_path):
    """Runs the command up to where engines would start; gives the configuration that they would get."""
    seen = []

    def workers(config, start_ray):
        seen.append(config)
        raise ConfigError("engines would start here")

    monkeypatch.setattr("algorithms.evaluation.benchmarks.inference_workers", workers)

    def run(*arguments):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        assert main([*map(str, arguments), "--out", str(tmp_path / "out")]) == 2
        return seen.pop()

    return run


def test_code_that_comes_with_the_checkpoint_is_not_run(shared, marker, tmp_path, capsys):
    config = json.loads(Path(resolve_model("embedded:tiny"), "config.json").read_text())
    config |= {"auto_map": {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"}, "model_type": "own"}
    files = [("config.json", json.dumps(config)), ("own.py", f"open({str(marker)!r}, 'w')\n")]
    run = shared({"rl_module": {"trust_remote_code": True}}, files)
    assert main(["--model", str(run), "--out", str(tmp_path / "out")]) == 2
    assert not marker.exists()
    told = capsys.readouterr().err
    assert told.splitlines()[-1].startswith("error: rl_module.model: ")
    assert "rl_module.trust_remote_code is not taken from a run folder" in told
    assert "repeat rl_module.trust_remote_code=true" in told


def test_trust_in_code_is_the_user_s_to_give(shared, configured, tmp_path, capsys):
    run = shared({"rl_module": {"trust_remote_code": True}})
    assert not configured("--model", run).rl_module_settings.trust_remote_code
    capsys.readouterr()
    assert configured("--model", run, "rl_module.trust_remote_code=true").rl_module_settings.trust_remote_code
    (tmp_path / "mine.yaml").write_text("rl_module: {trust_remote_code: true}")
    named = configured("--model", run, "--config", tmp_path / "mine.yaml")
    assert named.rl_module_settings.trust_remote_code
    assert "note:" not in capsys.readouterr().err


def test_arguments_of_vllm_are_the_user_s_to_give(shared, configured, tmp_path, capsys):
    run = shared({"env_runners": {"vllm": {"load_format": "pt", "worker_cls": FOREIGN, "max_model_len": 64}}})
    assert configured("--model", run).env_runners_settings.vllm == {}
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("note:")]
    assert len(told) == 1 and "env_runners.vllm is not taken" in told[0] and '"load_format": "pt"' in told[0]
    some = configured("--model", run, "env_runners.vllm.max_model_len=64")
    assert some.env_runners_settings.vllm == {"max_model_len": 64}
    (tmp_path / "mine.yaml").write_text("env_runners: {vllm: {enforce_eager: true}}")
    mine = configured("--model", run, "--config", tmp_path / "mine.yaml", "env_runners.vllm.max_model_len=64")
    assert mine.env_runners_settings.vllm == {"enforce_eager": True, "max_model_len": 64}


def test_a_base_of_the_run_s_file_decides_no_more_than_the_file(shared, configured, tmp_path):
    """A file that is reached twice applies where it comes first: the user's, named as a base, before the run's."""
    run = shared({})
    (run / "more.yaml").write_text("rl_module: {trust_remote_code: true}\nenv_runners: {vllm: {load_format: pt}}")
    (tmp_path / "mine.yaml").write_text("rl_module: {trust_remote_code: false}\nenv_runners: {vllm: {}}")
    file = run / "config.yaml"
    file.write_text(f"base: [{tmp_path / 'mine.yaml'}, more.yaml]\n{file.read_text()}")
    config = configured("--model", run, "--config", tmp_path / "mine.yaml")
    assert not config.rl_module_settings.trust_remote_code and not config.env_runners_settings.vllm


PARTS = {"options": {"environments": {"part": {"id": FOREIGN}}}}
NESTED = {"options": {"environments": {"outer": {"id": "r3env/Mixture-v0", **PARTS}}}}


@pytest.mark.parametrize(
    ("environment", "setting"),
    [
        ({"id": FOREIGN}, "environment.id"),
        ({"env": FOREIGN}, "environment.id"),
        ({"id": f"r3env/{FOREIGN}"}, "environment.id"),
        ({"id": f"r3env/{MODULE}.py:{FOREIGN}"}, "environment.id"),
        ({"id": "r3env/Mixture-v0", **PARTS}, "environment.options.environments.part.id"),
        (PARTS, "environment.options.environments.part.id"),
        (NESTED, "environment.options.environments.outer.options.environments.part.id"),
    ],
)
def test_a_module_that_the_run_names_is_not_imported(environment, setting, shared, marker, tmp_path, capsys):
    assert main(["--model", str(shared({"environment": environment})), "--out", str(tmp_path / "out")]) == 2
    assert not marker.exists()
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: ") and f"{setting}: " in last
    assert re.search(rf"repeat {setting}=(r3env/)?({MODULE}.py:)?{FOREIGN} on the command line$", last)


REWARD = f"{MODULE}:reward"
FUNCTION = {"id": "r3env/Function-v0", "options": {"reward": REWARD}}
TWO = ["examples.rewards:short", REWARD]
OF_PART = {"options": {"environments": {"part": FUNCTION}}}
AGENT = {"id": "r3env/Agent-v0", "options": {"agent": REWARD}}
TOOLS = {"id": "r3env/Tools-v0", "options": {"tools": REWARD}}


@pytest.mark.parametrize(
    ("environment", "setting", "value"),
    [
        (FUNCTION, "environment.options.reward", REWARD),
        (AGENT, "environment.options.agent", REWARD),
        (TOOLS, "environment.options.tools", REWARD),
        ({"id": "r3env/Function", "options": {"reward": REWARD}}, "environment.options.reward", REWARD),
        ({"env": "r3env/Function-v0", "options": {"reward": REWARD}}, "environment.options.reward", REWARD),
        ({"id": "r3env/Function-v0", "options": {"reward": TWO}}, "environment.options.reward", json.dumps(TWO)),
        ({"id": "r3env/Mixture-v0", **OF_PART}, "environment.options.environments.part.options.reward", REWARD),
        (
            {"id": "r3env/Mixture-v0", "options": {"reward": REWARD, "environments": {"p": {"id": FUNCTION["id"]}}}},
            "environment.options.reward",
            REWARD,
        ),
    ],
)
def test_a_function_that_the_run_names_is_not_imported_unless_the_user_names_it(
    environment, setting, value, shared, marker, tmp_path, capsys
):
    asked = ["--model", str(shared({"environment": environment})), "--out", str(tmp_path / "out")]
    say_so = f"{setting}={value}"
    for more in ([], ["environment.id=r3env/Function-v0"][: "Function" in str(environment.get("id"))]):
        assert main([*asked, *more]) == 2
        assert not marker.exists()
        last = capsys.readouterr().err.splitlines()[-1]
        assert f"{setting}: " in last and "names code to run" in last
        assert last.endswith(f"repeat {shlex.quote(say_so)} on the command line")
    assert main([*asked, say_so]) == 2
    assert marker.exists(), "imported; it has no such function"
    assert f"has no {REWARD.partition(':')[2]}" in capsys.readouterr().err


def test_a_server_that_the_run_names_is_not_started(shared, marker, tmp_path, capsys):
    servers = {"mine": {"command": "touch", "args": [str(marker)]}}
    run = shared({"environment": {"id": "r3env/Tools-v0", "options": {"mcp_servers": servers}}})
    assert main(["--model", str(run), "--out", str(tmp_path / "out")]) == 2
    assert not marker.exists()
    assert "environment.options.mcp_servers: " in capsys.readouterr().err


@pytest.mark.parametrize("setting", ["mechanisms", "query_sampler", "advantage", "objective"])
def test_a_method_that_the_run_was_trained_with_is_not_imported(setting, shared, marker, configured):
    """Nobody's is: an evaluation has no use for them."""
    named = f"{MODULE}:Method"
    run = shared({"training": {setting: [named] if setting == "mechanisms" else named}, "method": {"enabled": True}})
    configured("--model", run)
    assert not marker.exists()


def test_environments_that_hand_on_to_other_libraries_need_the_user_s_word(shared, tmp_path, capsys):
    """GEM's for code run what a policy writes, which is a stranger's too."""
    run = shared({"environment": {"id": "r3env.adapters.gem:Gem-v0", "options": {"name": "code:CodeContest"}}})
    assert main(["--model", str(run), "--out", str(tmp_path / "out")]) == 2
    assert "repeat environment.id=r3env.adapters.gem:Gem-v0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("environment", "override"),
    [
        ({"id": FOREIGN}, f"environment.id={FOREIGN}"),
        (
            {"id": "r3env/Mixture-v0", **PARTS},
            f"environment.options.environments.part.id={FOREIGN}",
        ),
    ],
)
def test_a_module_that_the_user_names_too_is_imported(environment, override, shared, marker, tmp_path, capsys):
    run = shared({"environment": environment})
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"environment": environment}))
    for say_so in ([override], ["--config", str(tmp_path / "mine.yaml")]):
        sys.modules.pop(MODULE, None)
        assert main(["--model", str(run), "--out", str(tmp_path / "out"), *say_so]) == 2
        assert marker.exists(), "imported; it registers nothing"
        assert "not one of r3env" not in capsys.readouterr().err
        marker.unlink()


def test_a_run_of_one_s_own_is_evaluated_without_a_word(shared, tmp_path, capsys):
    assert main(["--model", str(shared({})), "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr()
    assert "note:" not in told.err and "pass@1" in told.out
