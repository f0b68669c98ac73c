"""What starts is shown, stage by stage; actors report through Ray."""

import contextlib
import io
import threading

import pytest
import ray

from algorithms.utils.errors import RunError
from algorithms.utils.starting import (
    READY,
    DidNotStart,
    ShownStart,
    describe,
    failure_reported,
    forget_stages,
    report_stage,
    reported_stages,
)
from tests.own_ray import own_ray


class Watched(io.StringIO):
    """A log that says when a text has been written to it."""

    def __init__(self, *texts: str) -> None:
        super().__init__()
        self.seen = {text: threading.Event() for text in texts}

    def write(self, text: str) -> int:
        for awaited, event in self.seen.items():
            if awaited in text:
                event.set()
        return super().write(text)


def test_a_log_has_a_line_for_each_stage_and_one_at_the_end():
    log = Watched("engine: loading weights", "learner: loading weights")
    with ShownStart(stream=log):
        report_stage("engine", "loading weights")
        assert log.seen["engine: loading weights"].wait(60)
        report_stage("engine", READY)
        report_stage("learner", "loading weights")
        assert log.seen["learner: loading weights"].wait(60)
    lines = log.getvalue().splitlines()
    assert all(line.startswith("starting  ") for line in lines[:-1])
    assert "engine: ready; learner: loading weights" in lines[-2]
    assert lines[-1].startswith("started in ")


def test_a_start_that_fails_does_not_say_that_it_is_done():
    log = io.StringIO()
    try:
        with ShownStart(stream=log):
            raise RuntimeError
    except RuntimeError:
        assert "started" not in log.getvalue()


def test_several_of_a_kind_are_counted():
    stages = {"engine a": READY, "engine b": "loading weights", "engine c": READY, "learner": "loading weights"}
    assert describe(stages) == "engines: 2 ready, 1 loading weights; learner: loading weights"
    assert describe({}) == ""


def test_actors_report_their_stages():
    @ray.remote(num_cpus=0)
    class Slow:
        def __init__(self) -> None:
            report_stage("engine", "compiling")

        def ping(self) -> None: ...

    with own_ray():
        forget_stages()
        actors = [Slow.remote(), Slow.remote()]
        ray.get([actor.ping.remote() for actor in actors])
        assert describe(reported_stages()) == "engines: 2 compiling"
        forget_stages()
        assert reported_stages() == {}


def test_an_actors_own_line_takes_the_place_of_what_rllib_makes_of_its_failure():
    with pytest.raises(DidNotStart, match=r"^env_runners\.engine: no; fix: yes$"), ShownStart(stream=io.StringIO()):
        with contextlib.suppress(RunError), failure_reported("engine"):
            raise RunError("env_runners.engine: no; fix: yes")
        raise IndexError("list index out of range")


def test_a_failure_that_nobody_reported_stays_as_it_is():
    with pytest.raises(IndexError), ShownStart(stream=io.StringIO()):
        report_stage("engine", "loading weights")
        raise IndexError
