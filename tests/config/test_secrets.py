"""What a configuration says outside the machine: its settings, but no secret in them."""

import pytest
from omegaconf import OmegaConf

from algorithms.config.secrets import HIDDEN, references, without_secrets

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
    found = references(OmegaConf.to_container(written), OmegaConf.to_container(written, resolve=True))
    assert found == {
        ("environment", "key"): ("sesame-12", "${oc.env:JUDGE}"),
        ("environment", "list", "0"): ("Bearer sesame-12", "Bearer ${oc.env:JUDGE}"),
        ("environment", "list", "1"): ("Bearer sesame-12", "Bearer ${oc.env:JUDGE}"),
        ("environment", "near"): ("sesame-12", "${oc.env:JUDGE}"),
        ("environment", "default"): ("none", "${oc.env:UNSET,none}"),
        ("environment", "escaped"): ("${oc.env:JUDGE}", r"\${oc.env:JUDGE}"),
    }
