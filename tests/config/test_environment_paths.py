"""`environment.id=path:Class`: an environment from a folder as the Hub has them, or from a file."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from algorithms.config.errors import ConfigError
from algorithms.grpo.config import GRPOConfig
from algorithms.preflight.environments import validate_environment
from algorithms.rollout.env_runner import environment_makers
from algorithms.rollout.types import Split
from r3env.named_functions import check_names, load_named

TASK = """
from neighbor import NUMBERS
from r3env.core import Query, Reason, Verdict, VerifiableEnv


class Doubling(VerifiableEnv):
    def __init__(self, start=1, **arguments):
        super().__init__(**arguments)
        self.start = start

    def load_queries(self):
        return [Query(uid=str(n), problem=f"{n}+{n}", answer=str(2 * n)) for n in NUMBERS if n >= self.start]

    def verify(self, query, response):
        correct = query.answer in response
        return Verdict(correct, Reason.EQUAL if correct else Reason.DIFFERENT)


def helper():
    pass
"""
FILES = {
    "doubling_env/env.py": TASK,
    "doubling_env/neighbor.py": "NUMBERS = range(1, 8)\n",
    "doubling_env/requirements.txt": "what_it_needs\n",
    "single/any_name.py": "from r3env.envs.math import MathEnv\n",
    "two/a.py": "",
    "two/b.py": "",
    "needy/env.py": "import what_it_needs\n",
    "needy/requirements.txt": "what_it_needs\n",
    "none/README.md": "",
}


@pytest.fixture
def folders(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("place", ["doubling_env/", "./doubling_env", "doubling_env/env.py"])
def test_a_class_is_checked_and_made_by_its_folder_or_file(folders, place):
    config = GRPOConfig().environment(f"{place}:Doubling", env_config={"start": 3})
    assert validate_environment(config).queries == 5
    environment = environment_makers(config)[Split.TRAIN]()
    observation, _ = environment.reset(options={"uid": "4"})
    assert observation.startswith("4+4") and environment.step("8")[1] == 1.0


def test_a_part_of_a_mixture_may_be_one(folders):
    parts = {"mine": {"id": f"{folders}/doubling_env:Doubling"}, "sums": {"id": f"{folders}/single:MathEnv"}}
    facts = validate_environment(GRPOConfig().environment("r3env/Mixture-v0", env_config={"environments": parts}))
    assert facts.queries > 7


WRONG = {
    "./missing:Doubling": "there is no {folder}/missing; fix: the path of a folder or a Python file, from the current",
    "./none:Doubling": "{folder}/none has no Python file; fix: a folder that has one",
    "./two:Doubling": "{folder}/two has several Python files and no env.py; fix: name one, {folder}/two/a.py:Doubling",
    "doubling_env/:Dubling": "{folder}/doubling_env/env.py has no Dubling; the nearest is 'Doubling'",
    "doubling_env/:helper": "helper is not a subclass of r3env.core.VerifiableEnv; fix: subclass it",
    "doubling_env/:Query": "Query is not a subclass of r3env.core.VerifiableEnv; fix: subclass it",
    "./needy:Doubling": "importing it fails: ModuleNotFoundError: No module named 'what_it_needs' (env.py, line 1); "
    "fix: pip install -r {folder}/needy/requirements.txt",
}


@pytest.mark.parametrize("name", WRONG)
def test_the_line_of_a_wrong_path(folders, name):
    with pytest.raises(ConfigError) as error:
        validate_environment(GRPOConfig().environment(name))
    line = WRONG[name].replace("{folder}", str(Path(folders).resolve()))
    assert str(error.value).startswith(f"environment.id: {name!r}: {line}") and "\n" not in str(error.value)


def test_an_unknown_argument_is_named(folders):
    config = GRPOConfig().environment("./doubling_env:Doubling", env_config={"stat": 3})
    with pytest.raises(ConfigError, match=r"environment.options.stat: ./doubling_env:Doubling takes no argument stat"):
        validate_environment(config)


def test_a_file_is_imported_once_whichever_thread_comes_first(tmp_path):
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(0.2)\n\ndef multiply(a, b):\n    return a * b\n")
    name = f"{tmp_path}/slow.py:multiply"
    with ThreadPoolExecutor() as threads:
        first, *others = threads.map(load_named, [name] * 4)
    assert all(other is first for other in others)
    assert check_names(first, "") == (name,), "another process finds it by its file"
