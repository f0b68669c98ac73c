"""What the README shows is what runs."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SMALL = (
    "run.steps=1",
    "training.queries_per_step=2",
    "training.group_size=2",
    "evaluation.samples=1",
    "evaluation.k=[1]",
)


@pytest.mark.slow
def test_the_environment_of_the_readme_trains(tmp_path):
    (code,) = re.findall(r"```python\n(# doubling\.py\n.*?)```", README, re.DOTALL)
    (tmp_path / "doubling.py").write_text(code, encoding="utf-8")
    (command,) = re.findall(r"python (-m algorithms\.r3_grpo environment\.id=doubling[^`]*)```", README)
    arguments = command.replace("\\\n", " ").split()
    subprocess.run(
        [sys.executable, *arguments, *SMALL, "run.name=doubling"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=True,
        timeout=300,
    )
    summary = json.loads((tmp_path / "runs" / "doubling" / "summary.json").read_text())
    assert summary["eval"]["before"]["pass@1"] > 0, "the example must be able to reward the model that it trains"


def test_the_python_of_the_api_page_configures(monkeypatch):
    from algorithms.r3_grpo.config import R3GRPOConfig

    page = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(from algorithms\.r3_grpo\.config.*?)```", page, re.DOTALL)
    built = []
    monkeypatch.setattr(R3GRPOConfig, "build_algo", lambda config: built.append(config) or _Trained())
    exec(compile(code, "api.md", "exec"), {})
    (config,) = built
    config.check_settings()
    assert config.training_settings.group_size == 8 and config.replay_settings.k == 1


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(((?!http)[^)#]+)\)", README))))
def test_links_lead_somewhere(path):
    assert (ROOT / path).exists()


class _Trained:
    """Stands for an algorithm on GPUs that are not here."""

    def train(self):
        return {}
