"""A push between GPUs, step by step: what each end holds when the other takes memory. No Ray, no GPU."""

import pytest
import torch

from algorithms.config.placement import TransferKind
from algorithms.rollout.weight_sync import streamed
from algorithms.rollout.weight_sync.serialization import Serialization
from algorithms.rollout.weight_sync.streamed import StreamedTransfer, bucket_fields

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
