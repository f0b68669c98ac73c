"""The rule of tests/hidden_gpus.py, in a pytest of its own on a machine that seems to have CUDA."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TORCH = """
import os

class cuda:
    @staticmethod
    def is_available():
        return os.environ.get("CUDA_VISIBLE_DEVICES") != ""
"""
CONFTEST = """
import pytest
from tests.hidden_gpus import apply_to

@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    apply_to(items)
"""
TESTS = """
import os, subprocess, sys
import pytest, torch

def seen():
    command = [sys.executable, "-c", "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'))"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()

def test_on_a_cpu():
    assert not torch.cuda.is_available() and seen() == ""

@pytest.mark.gpu
def test_on_a_gpu():
    assert torch.cuda.is_available() and seen() == "3"
"""


@pytest.mark.parametrize(
    ("selection", "outcome"),
    [
        ([], "1 passed, 1 skipped"),
        (["-m", "gpu"], "1 passed, 1 deselected"),
    ],
)
def test_tests_see_gpus_only_in_a_run_of_tests_that_need_them(tmp_path, selection, outcome):
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    gpu: here\n    vllm: here\n")
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "3", "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:hypothesispytest",
        "-p",
        "no:xdist",
        "-q",
        str(tmp_path),
        *selection,
    ]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, text=True, capture_output=True, check=False)
    assert outcome in ended.stdout, ended.stdout + ended.stderr


def test_this_run_hides_them():
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_fake_gpus_are_none_that_a_machine_has(monkeypatch):
    import tests.own_ray

    asked = {}
    monkeypatch.setattr(tests.own_ray.ray, "is_initialized", lambda: False)
    monkeypatch.setattr(tests.own_ray.ray, "init", lambda **given: asked.update(given, visible=_visible()))
    monkeypatch.setattr(tests.own_ray.ray, "shutdown", lambda: None)
    with tests.own_ray.own_ray(2, fake_gpus=2):
        assert (asked["num_gpus"], asked["visible"]) == (2, "100,101")
    assert _visible() == ""


def _visible():
    return os.environ["CUDA_VISIBLE_DEVICES"]
