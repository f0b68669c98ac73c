import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow
TASK = """
import gymnasium
from r3env.core import Query, Reason, Verdict, VerifiableEnv


class Doubling(VerifiableEnv):
    def load_queries(self):
        return [Query(uid=str(n), problem=f"{n}+{n}", answer=str(2 * n)) for n in range(1, 10)]

    def verify(self, query, response):
        correct = str(query.answer) in response
        return Verdict(correct, Reason.EQUAL if correct else Reason.DIFFERENT)


gymnasium.register("Doubling-v0", entry_point=Doubling)
"""


def run(*command: str | Path, cwd: Path) -> str:
    # No other checkout on the path, and no Ray but the command's own.
    surroundings = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" and not k.startswith("RAY_")}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=surroundings, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def distributions(tmp_path_factory) -> Path:
    """A folder with the source distribution, and the wheel that was built from it."""
    # From a copy: setuptools leaves build/ and an egg-info folder in the tree, and packs what lies there.
    tree = tmp_path_factory.mktemp("tree") / "r3-grpo"
    for name in ("algorithms", "r3env", "configs"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", tree / "dist", cwd=tree)
    return tree / "dist"


@pytest.fixture(scope="module")
def wheel(distributions) -> Path:
    (built,) = distributions.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def names(wheel) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def elsewhere(wheel, tmp_path_factory) -> Path:
    """A virtual environment with the wheel, seeing this environment's packages but not this checkout."""
    folder = tmp_path_factory.mktemp("elsewhere")
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-deps",
        wheel,
        cwd=folder,
    )
    # This appends to the path; the .pth files over there, an editable install of this checkout, stay unread.
    (packages / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def test_every_module_is_in_the_wheel(names):
    modules = {
        str(file.relative_to(ROOT)) for package in ("algorithms", "r3env") for file in (ROOT / package).rglob("*.py")
    }
    assert modules
    assert modules <= names


def test_configs_assets_and_type_markers_are_in_the_wheel(names):
    configs = {f"algorithms/configs/{file.name}" for file in (ROOT / "configs").glob("*.yaml")}
    assets = {
        str(file.relative_to(ROOT))
        for folder in (ROOT / "r3env" / "assets", ROOT / "algorithms" / "reporting" / "assets")
        for file in folder.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert "algorithms/configs/quickstart.yaml" in configs
    assert len(assets) > 1 and "algorithms/reporting/assets/page.css" in assets
    assert configs | assets | {"algorithms/py.typed", "r3env/py.typed"} <= names


def test_nothing_else_is_in_the_wheel(names):
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"algorithms", "r3env"}
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]


def test_the_installed_wheel_is_what_runs_and_finds_its_configs(elsewhere):
    code = "import r3env, algorithms.config.loading as c; print(r3env.__file__, c.configs_folder())"
    module, configs = run(elsewhere / "venv/bin/python", "-c", code, cwd=elsewhere).split()
    assert module.startswith(str(elsewhere))
    assert configs.startswith(str(elsewhere))
    assert (Path(configs) / "quickstart.yaml").is_file()


def test_the_source_distribution_has_what_builds_the_wheel_and_no_runs(distributions):
    (built,) = distributions.glob("*.tar.gz")
    with tarfile.open(built) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"setup.py", "pyproject.toml", "LICENSE", "README.md", "configs/quickstart.yaml"} <= names
    assert not [name for name in names if name.startswith(("runs", "tests", ".venv", "build"))]


def test_the_console_command_has_the_version_of_the_wheel(elsewhere, wheel):
    said = run(elsewhere / "venv/bin/r3-grpo", "--version", cwd=elsewhere).strip()
    assert wheel.name.startswith(f"r3_grpo-{said}-")


def test_the_installed_wheel_checks_its_default_configuration(elsewhere):
    shown = run(elsewhere / "venv/bin/r3-grpo", "train", "--check", cwd=elsewhere)
    assert "embedded:tiny" in shown


def test_the_console_command_trains_a_step_with_a_task_of_the_folder_that_it_is_in(elsewhere):
    (elsewhere / "mine.py").write_text(TASK)  # beside the run, as with `python -m`
    run(
        elsewhere / "venv/bin/r3-grpo",
        "environment.id=mine:Doubling-v0",
        "run.steps=1",
        "run.dir=runs",
        "run.name=from-the-wheel",
        "training.queries_per_step=2",
        "training.group_size=2",
        "training.minibatches=1",
        "evaluation.limit=4",
        "evaluation.samples=1",
        "evaluation.k=[1]",
        "evaluation.interval=0",
        cwd=elsewhere,
    )
    folder = elsewhere / "runs" / "from-the-wheel"
    assert json.loads((folder / "summary.json").read_text())
    assert len((folder / "metrics.jsonl").read_text().splitlines()) >= 1
