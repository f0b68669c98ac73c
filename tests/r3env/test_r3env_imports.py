"""The environment package stands alone."""

import os
import subprocess
import sys
from pathlib import Path

import gymnasium
import pytest

import r3env
from r3env.core import VerifiableEnv


def test_no_module_imports_ray_vllm_or_torch() -> None:
    package = Path(r3env.__file__).parent
    # Adapters and IFEval's reward function bring in other people's libraries, if they are used.
    others = {"adapters", "instructions.py", "ifbench.py"}
    files = [path for path in package.rglob("*.py") if not others & set(path.parts)]
    modules = [".".join(path.relative_to(package.parent).with_suffix("").parts) for path in files]
    script = (
        "import importlib, sys\n"
        f"for module in {[module.removesuffix('.__init__') for module in modules]}:\n"
        "    importlib.import_module(module)\n"
        "from r3env.grading import grade\n"
        "assert grade('\\\\boxed{2/4}', '1/2').correct\n"
        "print(sorted({'ray', 'vllm', 'torch', 'transformers', 'datasets'} & set(sys.modules)))\n"
    )
    output = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=package.parent, check=True
    )
    assert output.stdout == "[]\n"


def test_importing_the_package_imports_no_environment() -> None:
    script = "import sys, r3env, gymnasium\n"
    script += "assert {r3env.MATH_ID, r3env.REASONING_GYM_ID, r3env.MIXTURE_ID} <= set(gymnasium.registry)\n"
    script += "rooms = ('r3env.envs', 'r3env.data', 'r3env.grading')\n"
    script += "assert not [m for m in sys.modules if m.startswith(rooms)], sys.modules"
    subprocess.run([sys.executable, "-c", script], cwd=Path(r3env.__file__).parents[1], check=True)


def test_importing_the_package_is_quick() -> None:
    # Processor time of a process that has the files in the page cache: what else the machine does must not count.
    script = "import r3env"
    times = []
    for _ in range(3):
        before = os.times()
        subprocess.run([sys.executable, "-c", script], cwd=Path(r3env.__file__).parents[1], check=True)
        after = os.times()
        spent = after.children_user + after.children_system - before.children_user - before.children_system
        times.append(spent)
    assert min(times) < 5.0  # a quarter of one, unless the processor is slow


@pytest.mark.parametrize("env_id", [r3env.MATH_ID, r3env.REASONING_GYM_ID, r3env.MIXTURE_ID])
def test_every_registered_id_can_be_made_without_arguments(env_id: str) -> None:
    env = gymnasium.make(env_id)
    observation, info = env.reset(seed=3)
    assert observation and info["uid"]
    assert isinstance(env.unwrapped, VerifiableEnv)
    env.close()
