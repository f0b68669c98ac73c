"""Engines that sleep while learners train, in steps that fail: nobody waits for them for ever. No Ray, no vLLM."""

import contextlib
from types import SimpleNamespace

import pytest

from algorithms.rollout import workers as workers_module
from algorithms.rollout.engines.vllm import VLLMEngine
from algorithms.rollout.weight_sync.transfer import NoRunnerTookWeights
from algorithms.rollout.workers import RolloutWorkers


def test_a_sleeping_engine_refuses_to_continue_instead_of_returning_nothing_for_ever():
    engine = object.__new__(VLLMEngine)
    engine._running, engine._awaited, engine._asleep, engine._early = {7}, None, True, []
    engine.llm = SimpleNamespace(llm_engine=SimpleNamespace(step=lambda: []))
    with pytest.raises(RuntimeError, match="it sleeps until it is given weights"):
        engine.step()


def test_runners_that_die_before_they_sleep_do_not_end_the_step(monkeypatch):
    class NobodyAnswers:
        def __init__(self, group, timeout_s):
            pass

        def __call__(self, call):
            raise NoRunnerTookWeights("no env runner took the weights: no answer in 5 s, or it died")

    monkeypatch.setattr(workers_module, "RunnerCalls", NobodyAnswers)
    workers = object.__new__(RolloutWorkers)
    workers.stream = SimpleNamespace(ahead=False, runners_to_itself=contextlib.nullcontext)
    workers.engines_sleep, workers.group, workers.settings = True, None, SimpleNamespace(timeout_s=5.0)
    workers.sleep_engines()
    assert workers._asleep
