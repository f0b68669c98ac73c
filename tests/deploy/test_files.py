"""The Dockerfile, the files of deploy/ and the workflow fit their schemas, and name what the project has."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import jsonschema
import pytest
import yaml

from algorithms.command import COMMANDS, module_and_arguments
from algorithms.config.loading import load
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.train.main import _parser

from .schemas import RAY_JOB, SBATCH, SKY_TASK, WORKFLOW

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SKY_ID = "sky-managed-2026-11-23-01-02-03-123456_r3-grpo_1-0"  # the same after each recovery
IN_THE_IMAGE = "/opt/r3-grpo/"
FILES = {"deploy/kuberay.yaml": RAY_JOB, "deploy/skypilot.yaml": SKY_TASK, ".github/workflows/ci.yml": WORKFLOW}


def read(name: str) -> dict:
    content = yaml.safe_load((ROOT / name).read_text())
    return {"on" if key is True else key: value for key, value in content.items()}


def gpus(config) -> float:
    runners, learners = config.env_runners_settings, config.learners_settings
    return (
        runners.num_env_runners * runners.num_gpus_per_env_runner
        + learners.num_learners * learners.num_gpus_per_learner
    )


def training_config(words: list[str]):
    """The configuration that a training command asks for, its files found as in the clone."""
    arguments = _parser("r3_grpo").parse_intermixed_args(words)
    files = [ROOT / file.removeprefix(IN_THE_IMAGE) for file in arguments.config]
    assert arguments.continue_run
    return load(files, arguments.overrides, R3GRPOConfig)


@pytest.mark.parametrize("name", FILES)
def test_a_file_fits_its_schema(name):
    jsonschema.validate(read(name), FILES[name])


def test_the_ray_job_has_the_gpus_that_its_configuration_places():
    spec = read("deploy/kuberay.yaml")["spec"]
    command, *words = shlex.split(spec["entrypoint"])
    module, words = module_and_arguments(words)
    assert (command, module) == ("r3-grpo", "algorithms.r3_grpo")
    config, run = training_config(words)
    (group,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    (worker,) = group["template"]["spec"]["containers"]
    assert gpus(config) == group["replicas"] * int(worker["resources"]["limits"]["nvidia.com/gpu"]) == 16
    mounts = {mount["mountPath"] for mount in worker["volumeMounts"]}
    assert run.dir.startswith(tuple(mounts)) and run.restarts > 0


def test_the_ray_jobs_version_is_the_pinned_one():
    version = read("deploy/kuberay.yaml")["spec"]["rayClusterSpec"]["rayVersion"]
    assert f"ray=={version}" in (ROOT / "constraints.txt").read_text().splitlines()


def test_every_volume_of_a_pod_is_mounted_and_there():
    cluster = read("deploy/kuberay.yaml")["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_the_sky_task_runs_a_training_on_the_gpus_that_it_asks_for():
    task = read("deploy/skypilot.yaml")
    script = task["run"].replace("\\\n", " ").replace("$SKYPILOT_TASK_ID", SKY_ID)
    config, run = training_config(shlex.split(script.split("r3-grpo ", 1)[1]))
    assert gpus(config) == int(task["resources"]["accelerators"].rpartition(":")[2]) * task["num_nodes"]
    assert run.dir.startswith(tuple(task["volumes"])) and run.name == SKY_ID
    for script in (task["setup"], task["run"]):
        assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0


def test_the_slurm_script_uses_known_options_once():
    options = re.findall(r"^#SBATCH --([a-z-]+)(?:=\S+)?$", (ROOT / "deploy/slurm.sh").read_text(), re.MULTILINE)
    assert len(options) == len(set(options)) == (ROOT / "deploy/slurm.sh").read_text().count("#SBATCH")
    assert set(options) <= SBATCH


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_the_workflow_runs_the_makes_tests_and_linters():
    jobs = read(".github/workflows/ci.yml")["jobs"]
    made = {step["run"].removeprefix("make ") for job in jobs.values() for step in job["steps"] if "run" in step}
    assert {"test", "lint"} <= made <= targets()
    assert all(re.search(r"@v\d+$", step["uses"]) for job in jobs.values() for step in job["steps"] if "uses" in step)


def test_hadolint_finds_nothing_in_the_dockerfile():
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    if hadolint is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([hadolint, "--no-color", ROOT / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_gets_what_the_build_reads_and_nothing_else():
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert all((ROOT / name).exists() for name in kept)
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {build["readme"], *build["license-files"], "constraints.txt", "setup.py", "pyproject.toml"} <= kept
    assert {"algorithms", "r3env", "configs"} <= kept
    assert not {"runs", ".venv", "tests", ".git"} & kept


def test_the_images_extras_are_extras():
    text = (ROOT / "Dockerfile").read_text() + (ROOT / "docs" / "guides" / "deploy.md").read_text()
    named = [word for extras in re.findall(r"EXTRAS=([\w,-]+)", text) for word in extras.split(",")]
    assert named and set(named) <= PROJECT["optional-dependencies"].keys()


def test_the_console_command_starts_modules_that_are_there():
    assert PROJECT["scripts"] == {"r3-grpo": "algorithms.command:main"}
    for module in COMMANDS.values():
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()
    assert module_and_arguments(["evaluate", "--model", "x"]) == ("algorithms.evaluate", ["--model", "x"])
    assert module_and_arguments(["run.steps=3", "--check"]) == ("algorithms.r3_grpo", ["run.steps=3", "--check"])
    assert module_and_arguments([]) == ("algorithms.r3_grpo", [])


def test_the_version_stands_in_one_place_and_the_papers_of_the_project_agree():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= cited.keys() and cited["authors"]
    assert (cited["version"], cited["license"]) == (PROJECT["version"], PROJECT["license"])
    (newest, *_) = re.findall(r"^## (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest == PROJECT["version"]
    code = [file for folder in ("algorithms", "r3env") for file in (ROOT / folder).rglob("*.py")]
    assert not [file for file in code if "__version__" in file.read_text(encoding="utf-8")]


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_no_host_of_a_package_registry_stands_in_any_file():
    names = ("pypi org", "pythonhosted org", "npmjs org", "download pytorch org", "ghcr io", "anaconda org", "nvcr io")
    hosts = [name.replace(" ", ".").encode() for name in names]
    assert [str(file) for file in tracked() if any(host in file.read_bytes() for host in hosts)] == []
