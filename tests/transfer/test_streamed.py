"""A push between GPUs, step by step: what each end holds when the other takes memory. No Ray, no GPU."""

import threading
from types import SimpleNamespace

import pytest
import torch

from algorithms.config.placement import TransferKind
from algorithms.learner.group import LearnerDied
from algorithms.rollout.weight_sync import nccl, streamed
from algorithms.rollout.weight_sync.serialization import Serialization
from algorithms.rollout.weight_sync.streamed import StreamedTransfer, bucket_fields, sender_of
from algorithms.rollout.weight_sync.transfer import NoRunnerTookWeights

VERSION = 7


class Weights(torch.nn.Linear):
    def get_decoder(self):
        return self


class Learner:
    _learner_index, _weights_seq_no, weight_sender = 0, VERSION, None

    def __init__(self):
        self.lm = Weights(3, 2)

    def policy_shapes(self):
        return {name: tuple(tensor.shape) for name, tensor in self.lm.state_dict().items()}

    def policy_float32(self):
        return ()

    def policy_tensors(self):
        return iter(self.lm.state_dict().items())


class LearnerGroup:
    is_local = True

    def __init__(self):
        self._learner = Learner()

    def __len__(self):
        return 0


class Engine:
    """Notes what is asked of it."""

    weights_version = -1

    def __init__(self, events):
        self.events = events

    def start_weights(self, shapes):
        self.events.append("engine maps the buffer")

    def add_weights(self, update):
        self.events.append("engine reads the buffer")

    def end_transfer(self, version):
        self.events.append("engine closes its mapping")

    def finish_weights(self, version):
        self.events.append("engine wakes its cache")
        self.weights_version = version


class RunnerGroup:
    def __init__(self, events):
        self.engine, self.local_env_runner = Engine(events), self

    def num_remote_env_runners(self):
        return 0


class Route:
    kind, concurrent = TransferKind.IPC, False

    def __init__(self):
        self.channel = self

    def prepare(self, learner_group, calls):
        pass

    def sends(self, learner):
        return True

    def offer(self, learner, buffer):
        return None

    def deliver(self, learner, packed):
        pass

    def update(self, offers):
        return bucket_fields(offers[0])


@pytest.fixture
def events(monkeypatch):
    noted = []
    monkeypatch.setattr(streamed, "release_memory", lambda: noted.append("learner frees memory"))
    return noted


def test_a_learner_frees_its_buffer_between_the_end_of_the_mapping_and_the_wake_of_the_cache(events):
    learners = LearnerGroup()
    assert StreamedTransfer(Route(), Serialization("float32", 1000)).push(learners, RunnerGroup(events), 60) == VERSION
    assert events == [
        "learner frees memory",
        "engine maps the buffer",
        "engine reads the buffer",
        "engine closes its mapping",
        "learner frees memory",
        "engine wakes its cache",
    ]
    assert next(learners._learner.weight_sender.buckets, None) is None


class Actors:
    """Three engines in actors of their own, of which some fail."""

    def __init__(self, failing):
        self.engines = {number: Engine([]) for number in (1, 2, 3)}
        self.unhealthy, self._worker_manager = [], self
        for number, method in failing.items():
            setattr(self.engines[number], method, self._fail)

    def _fail(self, argument):
        raise RuntimeError("out of memory")

    def num_remote_env_runners(self):
        return len(self.engines)

    def healthy_env_runner_ids(self):
        return list(self.engines)

    def foreach_env_runner(self, call, *, local_env_runner, remote_worker_ids, timeout_seconds):
        runners = [SimpleNamespace(worker_index=number, engine=self.engines[number]) for number in remote_worker_ids]
        return [call(runner) for runner in runners]

    def set_actor_state(self, number, healthy):
        self.unhealthy.append(number)


class Broadcasts(Route):
    """A route whose every delivery needs all engines; the last one that was begun may never end."""

    concurrent = True

    def __init__(self, delivered=lambda: None):
        super().__init__()
        self.delivered, self.count = delivered, 0

    def deliver(self, learner, packed):
        self.count += 1
        self.delivered()


@pytest.mark.parametrize(("method", "broadcasts"), [("start_weights", 0), ("add_weights", 1)])
def test_no_broadcast_begins_without_an_engine_that_has_failed(method, broadcasts):
    actors, route = Actors({2: method}), Broadcasts()
    with pytest.raises(NoRunnerTookWeights, match="another one failed"):
        StreamedTransfer(route, Serialization("float32", 24)).push(LearnerGroup(), actors, 60)
    assert route.count == broadcasts
    assert sorted(actors.unhealthy) == [1, 2, 3], "their weights are incomplete"


@pytest.mark.parametrize("failing", [[2], [1, 2, 3]])
def test_a_learner_that_gives_a_broadcast_up_ends_the_run_whatever_is_left_of_the_engines(failing):
    def gives_up():
        raise LearnerDied("the engines have not taken it")

    actors = Actors(dict.fromkeys(failing, "add_weights"))
    with pytest.raises(LearnerDied, match="the engines have not taken it"):
        StreamedTransfer(Broadcasts(gives_up), Serialization("float32", 24)).push(LearnerGroup(), actors, 60)


def test_a_learner_waits_for_a_broadcast_no_longer_than_the_engines_may(monkeypatch):
    learner, end = Learner(), threading.Event()
    sender = sender_of(learner)
    sender.communicator, sender.timeout_s = object(), 0.1
    monkeypatch.setattr(nccl, "AFTERWARDS_S", 0.0)
    monkeypatch.setattr(nccl, "broadcast", lambda communicator, packed: end.wait(60))
    try:
        with pytest.raises(LearnerDied, match=r"not taken a broadcast in 0\.1 s; fix: resume .* --resume"):
            nccl.NCCLChannel().deliver(learner, torch.zeros(1))
        assert sender.communicator is None
    finally:
        end.set()


def test_a_broadcast_that_fails_says_why(monkeypatch):
    def fails(communicator, packed):
        raise RuntimeError("NCCL error: remote process exited\nand more")

    learner = Learner()
    monkeypatch.setattr(nccl, "broadcast", fails)
    with pytest.raises(LearnerDied, match="^a learner could not send its weights: .*remote process exited; fix"):
        nccl.NCCLChannel().deliver(learner, torch.zeros(1))
