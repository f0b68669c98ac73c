"""Sets the stage before torch is imported: few threads, no network, no display; examples that repeat."""

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.hidden_gpus import apply_to

_SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "MPLBACKEND": "Agg",
    "RAY_USAGE_STATS_ENABLED": "0",
    "VLLM_NO_USAGE_STATS": "1",
    # Made for the tests, and NLTK's format alone: a sentence ends at every period but that of "Dr.".
    "NLTK_DATA": str(Path(__file__).parent / "r3env" / "samples" / "nltk_data"),
}
for _name, _value in _SETTINGS.items():
    os.environ.setdefault(_name, _value)

# The same examples in every run, however long one takes on a busy machine.
settings.register_profile("repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")


@pytest.fixture
def build() -> Iterator[Callable[[Any], Any]]:
    """Builds algorithms and stops them at the end of the test."""
    built = []

    def make(config: Any) -> Any:
        built.append(config.build_algo())
        return built[-1]

    yield make
    for algorithm in built:
        algorithm.stop()


@pytest.fixture(scope="session")
def shaped_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folders of small random models in the shapes of real families, made once; who changes one copies it first."""
    from tests.shapes import make_model

    return functools.cache(lambda name: make_model(tmp_path_factory.mktemp("shapes") / name, name))


@pytest.fixture(scope="session", name="real_model")
def real_model_folder() -> Path:
    """The folder of SmolLM2-135M-Instruct; who changes it copies it first."""
    from benchmarks.real_model import real_model

    folder = real_model()
    return folder or pytest.skip("the real model is not there: make real-model")


# The tests of a folder share its Ray, so they go to one process; in these they share little and take minutes.
_DEALT_OUT_BY_FILE = ("tests/command_line/", "tests/r3env/")
# These share one run, so they go to one process as well.
_USERS = ("killed", "interrupt", "a_run", "documented_metrics")
_OF_ONE_RUN = tuple(f"tests/command_line/test_{name}.py" for name in _USERS)
# What takes longest comes first, so that no process is left with it at the end.
_FIRST = (
    "tests/rollout/",
    *_OF_ONE_RUN,
    "tests/training/",
    "tests/real/",
    "tests/driver/",
    "tests/family/",
    "tests/waits/",
    "tests/faults/",
    "tests/first_gpu/",
    "tests/sharding/",
    "tests/ablations/",
    "tests/cluster/",
    "tests/transfer/",
    "tests/trainers/",
    "tests/learner/",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deals tests out to `--numprocesses` by folder. (`--dist loadgroup` of xdist 3.8 does nothing on pytest 9.2.)"""
    from xdist.scheduler.loadscope import LoadScopeScheduling

    class ByFolder(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::")[0]
            if file in _OF_ONE_RUN:
                return _OF_ONE_RUN[0]
            return file if file.startswith(_DEALT_OUT_BY_FILE) else file.rpartition("/")[0]

    return ByFolder(config, log)


@pytest.hookimpl(trylast=True)  # when -m and -k have taken away what does not run
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=_turn)
    apply_to(items)


def _turn(item: pytest.Item) -> int:
    return next((turn for turn, place in enumerate(_FIRST) if item.nodeid.startswith(place)), len(_FIRST))
