"""The environment package stands alone."""

import subprocess
import sys
from pathlib import Path

import r3env


def test_no_module_imports_ray_vllm_or_torch() -> None:
    package = Path(r3env.__file__).parent
    files = [path for path in package.rglob("*.py") if "assets" not in path.parts]
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
    script = "import sys, r3env, gymnasium\nassert r3env.MATH_ID in gymnasium.registry\n"
    script += "assert not [m for m in sys.modules if m.startswith('r3env.')], sys.modules"
    subprocess.run([sys.executable, "-c", script], cwd=Path(r3env.__file__).parents[1], check=True)
