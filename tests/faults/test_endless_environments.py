"""An environment that never comes back fails its own episode; the others run, and so does the next step."""

import itertools
import subprocess
import sys
import threading
import time

import pytest

from algorithms.models.names import resolve_model
from algorithms.models.tokenizer import load_tokenizer, stop_token_ids
from algorithms.rollout.engines.factory import make_engine
from algorithms.rollout.episode_runner import EpisodeRunner
from algorithms.rollout.types import Prompt, Request, Sampling, Split
from benchmarks.simulation.engine import Lengths, ModelClock, SimulatedEngine
from r3env.core import Query, Reason, Verdict, VerifiableEnv

TIMEOUT_S = 5.0
SAMPLING = Sampling(1.0, 1.0, 8)


class Endless(VerifiableEnv):
    """Each query's uid says what never ends."""

    release = threading.Event()

    def load_queries(self):
        return [Query(kind, "1+2", "3") for kind in ("fine", "step", "reset", "turns")]

    def verify(self, query, response):
        if query.uid == "step":
            self.release.wait()
        return Verdict(True, Reason.EQUAL)

    def reset(self, *, seed=None, options=None):
        self.endless_turns = options["uid"] == "turns"
        if options["uid"] == "reset":
            self.release.wait()
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self.endless_turns:
            return "Go on.", 0.0, False, False, {"uid": "turns", "correct": False, "verdict": "different"}
        return super().step(action)


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(resolve_model("embedded:tiny"))


@pytest.fixture(scope="module")
def engine(tokenizer):
    model = resolve_model("embedded:tiny")
    ends = stop_token_ids(tokenizer, model)
    engine = make_engine("transformers", model=model, dtype="float32", max_num_seqs=64, eos_token_ids=ends)
    yield engine
    engine.close()


@pytest.fixture
def made():
    return []


@pytest.fixture
def runner(engine, tokenizer, made):
    def make():
        made.append(Endless())
        return made[-1]

    yield EpisodeRunner(engine, tokenizer, dict.fromkeys(Split, make), step_timeout_s=TIMEOUT_S)
    Endless.release.set()
    Endless.release.clear()


def requests_of(*uids):
    return [Request(i, Prompt(uid), i, i, SAMPLING) for i, uid in enumerate(uids)]


@pytest.mark.parametrize("kind", ["step", "reset"])
def test_a_call_that_never_returns_fails_its_episode_alone(runner, made, kind):
    started = time.monotonic()
    before, endless, after = runner.rollout(requests_of("fine", kind, "fine"))
    assert time.monotonic() - started < TIMEOUT_S + 60
    assert endless.verdict == "environment_error" and not endless.correct
    assert endless.error == "the environment did not return within 5 s (env_runners.step_timeout_s)"
    assert len(endless.tokens) == len(endless.loss_mask)
    assert len(endless.sampling_logprobs) == endless.response_length
    assert before.error is None and after.error is None
    assert runner.unfinished == 0 and len(made) == 3
    assert [rollout.error for rollout in runner.rollout(requests_of("fine", "fine", "fine"))] == [None] * 3
    assert len(made) == 4, "the environment that hangs is not used again"


@pytest.mark.slow
def test_a_streaming_engine_continues_meanwhile(tokenizer):
    """Run in pieces, as a remote runner does: none of them waits for the environment that hangs."""
    engine = SimulatedEngine(lengths=Lengths(mean=5, sigma=0.0), clock=ModelClock(speed=1000.0))
    runner = EpisodeRunner(engine, tokenizer, dict.fromkeys(Split, Endless), 4, TIMEOUT_S)
    runner.add(requests_of("reset", *["fine"] * 9))
    ended, alone = {}, 0
    while runner.unfinished:
        for rollout in runner.advance(0.1):
            ended[rollout.request_id] = rollout
        alone += runner.unfinished == 1
    Endless.release.set()
    Endless.release.clear()
    assert sorted(ended) == list(range(10))
    assert alone > 2, "control came back while only the one that hangs was left"
    assert [ended[i].error is None for i in range(10)] == [False] + [True] * 9
    assert list(ended)[-1] == 0, "the others were not kept waiting"


@pytest.mark.slow
def test_a_constructor_that_never_returns_fails_its_episode_alone(tokenizer):
    release, made, numbers = threading.Event(), [], itertools.count()

    def make():
        number = next(numbers)
        made.append(number)
        if number == 1:
            release.wait()
        return Endless()

    engine = SimulatedEngine(lengths=Lengths(mean=5, sigma=0.0), clock=ModelClock(speed=1000.0))
    runner = EpisodeRunner(engine, tokenizer, dict.fromkeys(Split, make), 4, TIMEOUT_S)
    errors = [rollout.error for rollout in runner.rollout(requests_of("fine", "fine", "fine"))]
    late = f"the environment did not return within {TIMEOUT_S:g} s (env_runners.step_timeout_s)"
    assert list(filter(None, errors)) == [late]
    release.set()
    assert len(made) == 3
    assert [rollout.error for rollout in runner.rollout(requests_of("fine", "fine", "fine"))] == [None] * 3
    assert len(made) == 4, "the one that came too late is not used"


@pytest.mark.slow
def test_what_comes_back_too_late_is_not_heard(runner, made):
    (late,) = runner.rollout(requests_of("step"))
    Endless.release.set()
    tokens = late.tokens.tolist()
    time.sleep(0.2)
    assert [rollout.error for rollout in runner.rollout(requests_of("fine", "fine"))] == [None, None]
    assert late.tokens.tolist() == tokens and late.error and len(made) == 3


@pytest.mark.slow
def test_more_hanging_environments_than_there_are_threads(runner, monkeypatch):
    monkeypatch.setattr(runner._threads, "_most", 8)
    rollouts = runner.rollout(requests_of(*["step"] * 9, "fine"))
    assert [rollout.error is None for rollout in rollouts] == [False] * 9 + [True]


def test_turns_without_end_end_with_the_models_context(runner, engine):
    endless, fine = runner.rollout(requests_of("turns", "fine"))
    assert endless.verdict == "environment_error" and "leave no room" in endless.error
    assert engine.context_length - 40 < len(endless.tokens) <= engine.context_length
    assert fine.error is None


def test_the_process_does_not_wait_for_them_at_its_end():
    script = (
        "import queue, threading, time\n"
        "from algorithms.rollout.env_threads import SteppingThreads, Work\n"
        "done = queue.SimpleQueue()\n"
        "threads = SteppingThreads(2, done.put)\n"
        "def submit(call, *arguments):\n"
        "    work = Work(call, arguments)\n"
        "    threads.submit(work)\n"
        "    threads.spread()\n"
        "    return work\n"
        "hanging = submit(threading.Event().wait)\n"
        "printed = submit(print, 'done')\n"
        "assert done.get(timeout=300) is printed\n"
        "while threads.overdue(0.1) != [hanging]: time.sleep(0.01)\n"
        "threads.give_up(hanging)\n"
        "more = submit(print, 'and more')\n"
        "assert done.get(timeout=300) is more\n"
    )
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600)
    assert (process.returncode, process.stdout, process.stderr) == (0, "done\nand more\n", "")
