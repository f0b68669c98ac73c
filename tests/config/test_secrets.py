"""What a configuration says outside the machine: its settings, but no secret in them."""

import pytest
from omegaconf import OmegaConf

from algorithms.config import files
from algorithms.config.errors import ConfigError
from algorithms.config.loading import load
from algorithms.config.secrets import HIDDEN, references, without_secrets
from algorithms.grpo.config import GRPOConfig
from algorithms.train.exit_codes import DONE, WRONG_INPUT, in_one_line

CONFIG = {
    "algorithm": "grpo",
    "training": {"lr": 1e-6, "group_size": 8},
    "env_runners": {"num_env_runners": 2},
    "environment": {
        "id": "r3env/Tools-v0",
        "options": {
            "mcp_servers": {
                "files": {"command": "python", "args": ["server.py"], "env": {"API_KEY": "sk-1", "PORT": 8}},
                "web": {"url": "https://me:pass-2@host:1/mcp?q=a@b", "headers": {"Authorization": "Bearer sk-3"}},
                "bare": {"command": "python", "env": {}, "headers": None},
            },
        },
    },
}


def test_keys_of_env_and_headers_stay_and_their_values_are_hidden():
    servers = without_secrets(CONFIG)["environment"]["options"]["mcp_servers"]
    assert servers["files"] == {
        "command": "python",
        "args": ["server.py"],
        "env": {"API_KEY": HIDDEN, "PORT": HIDDEN},
    }
    assert servers["web"]["headers"] == {"Authorization": HIDDEN}
    assert servers["bare"] == CONFIG["environment"]["options"]["mcp_servers"]["bare"]


def test_a_log_in_in_a_url_is_hidden():
    web = without_secrets(CONFIG)["environment"]["options"]["mcp_servers"]["web"]
    assert web["url"] == f"https://{HIDDEN}@host:1/mcp?q=a@b"


@pytest.mark.parametrize("name", ["JUDGE_API_KEY", "HF_TOKEN", "db_password", "CLIENT_SECRET"])
def test_the_value_of_a_secret_variable_is_hidden_wherever_it_stands(monkeypatch, name):
    monkeypatch.setenv(name, "sesame-12")
    monkeypatch.setenv(f"{name}_LONGER", "sesame-12-34")
    found = without_secrets({"environment": {"options": {"a": ["--key=sesame-12"], "b": {"c": "sesame-12-34"}}}})
    assert found["environment"]["options"] == {"a": [f"--key={HIDDEN}"], "b": {"c": HIDDEN}}


def test_other_variables_and_short_values_hide_nothing(monkeypatch):
    monkeypatch.setenv("SCRATCH", "/scratch/somebody")
    monkeypatch.setenv("SOME_KEY", "grpo")
    config = {"algorithm": "grpo", "run": {"dir": "/scratch/somebody/runs"}}
    assert without_secrets(config) == config


def test_all_else_stays_as_it_is_and_the_original_is_not_touched():
    before = repr(CONFIG)
    found = without_secrets(CONFIG)
    assert repr(CONFIG) == before
    assert {key: found[key] for key in found if key != "environment"} == {
        key: CONFIG[key] for key in CONFIG if key != "environment"
    }


def test_text_from_the_environment_is_known_by_how_it_was_written_also_through_other_settings(monkeypatch):
    monkeypatch.setenv("JUDGE", "sesame-12")
    written = OmegaConf.create(
        {
            "environment": {
                "key": "${oc.env:JUDGE}",
                "list": ["Bearer ${environment.key}", "${.0}", "plain"],
                "near": "${.key}",
                "default": "${oc.env:UNSET,none}",
                "number": "${oc.decode:${oc.env:UNSET,3}}",
                "escaped": "\\${oc.env:JUDGE}",
                "other": "${environment.list.2}",
                "itself": "\\${environment.itself}",
            }
        }
    )
    assert references(written) == {
        ("environment", "key"): ("sesame-12", "${oc.env:JUDGE}"),
        ("environment", "list", "0"): ("Bearer sesame-12", "Bearer ${oc.env:JUDGE}"),
        ("environment", "list", "1"): ("Bearer sesame-12", "Bearer ${oc.env:JUDGE}"),
        ("environment", "near"): ("sesame-12", "${oc.env:JUDGE}"),
        ("environment", "default"): ("none", "${oc.env:UNSET,none}"),
    }


@pytest.mark.parametrize(
    ("written", "path", "expected"),
    [
        ("${environment[key]}", (), "${oc.env:JUDGE}"),
        ("${environment.list[0]}", (), "${oc.env:JUDGE}"),
        ("${environment.${environment.which}}", (), "${oc.env:JUDGE}"),
        ("${.${.which}}", (), "${oc.env:JUDGE}"),
        ("${oc.env:${environment.variable}}", (), "${oc.env:JUDGE}"),
        ("${oc.decode:${oc.env:JUDGE}}", (), "${oc.decode:${oc.env:JUDGE}}"),
        ("${oc.decode:${oc.env:PIN_SECRET}}", (), "${oc.decode:${oc.env:PIN_SECRET}}"),
        ("${oc.decode:${oc.env:MAPPING}}", (), "${oc.decode:${oc.env:MAPPING}}"),
        ("${oc.select:environment.key}", (), "${oc.select:environment.key}"),
        ("${environment.nested}", (), "${environment.nested}"),
        ("${oc.dict.values:environment.nested}", (), "${oc.dict.values:environment.nested}"),
        ({"a": ["${environment[list][0]}"]}, ("a", "0"), "${oc.env:JUDGE}"),
        ("${environment.${oc.env:NAMES}}", (), "${environment.${oc.env:NAMES}}"),
        ("${ environment.key }", (), "${oc.env:JUDGE}"),
    ],
)
def test_no_form_of_interpolation_lets_a_secret_be_written(monkeypatch, tmp_path, written, path, expected):
    for name, value in {"JUDGE": "sesame-12", "PIN_SECRET": "73509142", "NAMES": "key"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MAPPING", "{deep: [sesame-12]}")
    beside = {"key": "${oc.env:JUDGE}", "list": ["${oc.env:JUDGE}"], "which": "key"}
    beside |= {"variable": "JUDGE", "nested": {"deep": "${oc.env:JUDGE}"}}
    data = {"environment": {**beside, "found": written}}
    loaded = OmegaConf.create(data)
    resolved = OmegaConf.to_container(loaded, resolve=True)["environment"]["found"]
    value = resolved["a"][0] if path else resolved
    assert references(loaded)["environment", "found", *path] == (value, expected)
    again = OmegaConf.create({"environment": {**beside, "found": expected}})
    assert OmegaConf.to_container(again, resolve=True)["environment"]["found"] == value


def test_a_file_is_written_with_the_references_of_containers_and_numbers(monkeypatch, tmp_path):
    monkeypatch.setenv("OPTIONS", "{key: sesame-12, more: [sesame-12]}")
    monkeypatch.setenv("PIN_SECRET", "73509142")
    file = tmp_path / "config.yaml"
    file.write_text(
        "algorithm: grpo\nenvironment:\n  id: r3env/Function-v0\n  options:\n    function: a:b\n"
        "    judge: ${oc.decode:${oc.env:OPTIONS}}\n    pin: ${oc.decode:${oc.env:PIN_SECRET}}\n"
        "    again: ${.judge}\n"
    )
    sections, found = files._read(file)
    assert sections["environment"]["options"]["pin"] == 73509142
    written = files._escaped(sections, found)
    assert "sesame" not in str(written) and "73509142" not in str(written)
    file.write_text(OmegaConf.to_yaml(OmegaConf.create(written)))
    assert files._read(file)[0] == sections


def test_a_section_that_comes_whole_from_a_variable_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("WHOLE", "{id: r3env/Math-v0}")
    file = tmp_path / "config.yaml"
    file.write_text("environment: ${oc.decode:${oc.env:WHOLE}}\n")
    with pytest.raises(ConfigError, match="config.yaml: environment: the whole section comes from an environment"):
        files._read(file)


def test_the_line_of_an_error_hides_what_a_secret_variable_holds(monkeypatch, capsys):
    monkeypatch.setenv("JUDGE_API_KEY", "sk-0123456789")

    def fails() -> int:
        load(None, ["rl_module.model=embedded:tiny", "training.lr=${oc.env:JUDGE_API_KEY}"], GRPOConfig)
        return DONE

    assert in_one_line(fails, retry="") == WRONG_INPUT
    line = capsys.readouterr().err
    assert line.startswith(f"error: training.lr: '{HIDDEN}' is not a number") and "sk-" not in line
