"""An engine or a learner that is stopped while it starts, where RLlib waits without a limit, ends the start."""

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from algorithms.learner.learner import GRPOLearner
from algorithms.rollout.env_runner import LLMEnvRunner
from algorithms.rollout.types import Prompt, Request, Sampling
from algorithms.rollout.workers import inference_workers
from algorithms.utils import start_watch
from algorithms.utils.starting import DidNotStart
from tests.driver.conftest import two_runners
from tests.hand_made import small_pool

from .conftest import LIMIT_S

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # its classes go to actors
LINE = r" \(process \d+ on [\d.]+\) was stopped \(SIGSTOP\) for 1 s while it started, and was killed"


class StopsOnce(LLMEnvRunner):
    """The first one is stopped in its constructor; Ray starts another in its place."""

    def make_module(self) -> None:
        flag = Path(self.config.env_config["data"]).with_name("stopped")
        if not flag.exists():
            flag.touch()
            os.kill(os.getpid(), signal.SIGSTOP)
        super().make_module()


class StoppedLearner(GRPOLearner):
    """Is stopped in the call that builds it."""

    def build(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


@pytest.fixture(autouse=True)
def short_looks(ray_session, monkeypatch) -> Iterator[None]:
    """Looks are short, and a start that never ends fails the test."""

    def fail(*received: Any) -> None:
        raise TimeoutError("the start waits for ever")

    monkeypatch.setattr(start_watch, "LOOK_S", 0.5)
    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.slow
def test_an_engine_that_is_stopped_while_it_starts_is_named_and_started_again(caplog, tmp_path):
    config = two_runners().environment(env_config={"data": small_pool(tmp_path, 2)})
    with inference_workers(config.env_runners(num_env_runners=1, env_runner_cls=StopsOnce)) as workers:
        (rollout,) = workers.rollout([Request(0, Prompt("train-000"), 0, 1, Sampling(1.0, 1.0, 4))])
    assert len(rollout.tokens)
    assert any(re.match(f"the actor StopsOnce{LINE}; fix: find", record.getMessage()) for record in caplog.records)


@pytest.mark.slow
def test_a_learner_that_is_stopped_while_it_starts_ends_the_start_in_one_line():
    config = two_runners().env_runners(num_env_runners=0)
    config.learners(num_learners=1, num_cpus_per_learner=0.5, learner_class=StoppedLearner)
    with pytest.raises(DidNotStart, match=f"^a learner{LINE}; fix: .*--resume"):
        config.build_algo()
