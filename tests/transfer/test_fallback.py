"""Where CUDA IPC or NCCL cannot be set up, weights go through the object store, and the run says so.

Neither is here. What stands in: for a GPU that learner and engine share, shared memory of this machine, which torch
exports and opens by the same calls; for NCCL, a rendezvous at which nobody arrives, as NCCL's own waits.
"""

import threading

import pytest
import torch

from algorithms.config.placement import TransferKind
from algorithms.rollout.weight_sync import ipc, nccl
from algorithms.rollout.weight_sync.choice import OrObjectStore
from algorithms.rollout.weight_sync.serialization import Serialization
from algorithms.rollout.weight_sync.streamed import StreamedTransfer, sender_of
from algorithms.rollout.weight_sync.transfer import RunnerCalls, TransferUnavailable

from .conftest import BUCKET_BYTES

SERIALIZATION = Serialization("float32", BUCKET_BYTES)


@pytest.fixture(scope="module")
def algorithm(build):
    return build()


@pytest.fixture
def learner(algorithm):
    learner = algorithm.learner_group._learner
    with torch.no_grad():
        for parameter in learner.lm.parameters():
            parameter += 0.02
    learner._weights_seq_no += 1
    return learner


@pytest.fixture
def one_gpu(monkeypatch):
    """Main memory as a GPU that the learner and the engine share."""
    monkeypatch.setattr(ipc, "own_gpu", lambda learner: "GPU-0")
    monkeypatch.setattr(ipc, "visible_gpus", lambda runner: {"GPU-0": torch.device("cpu")})
    monkeypatch.setattr(ipc, "_introduce", lambda runner: None)


def pushed_by(route, algorithm, learner):
    """Push with the object store behind the route; returns the transfer. The engine has the weights."""
    transfer = OrObjectStore(StreamedTransfer(route, SERIALIZATION), SERIALIZATION)
    version = transfer.push(algorithm.learner_group, algorithm.env_runner_group, 60)
    engine = algorithm.env_runner_group.local_env_runner.engine
    assert engine.weights_version == version == learner._weights_seq_no
    for name, tensor in learner.lm.state_dict().items():
        torch.testing.assert_close(engine.model.state_dict()[name], tensor, rtol=0, atol=0)
    return transfer


def prepare(route, algorithm):
    route.prepare(algorithm.learner_group, RunnerCalls(algorithm.env_runner_group, 60))


def test_a_small_tensor_makes_the_round_trip_and_is_taken_back(algorithm, learner, one_gpu, monkeypatch):
    route = ipc.IPCRoute()
    prepare(route, algorithm)
    assert sender_of(learner).lent is None
    monkeypatch.setattr(ipc, "lend", fails)  # what was tried once is not tried again
    prepare(route, algorithm)


def fails(*arguments, **more):
    raise RuntimeError("CUDA error: invalid argument\nand twenty further lines")


@pytest.mark.parametrize("end", ["the learner's", "the engine's", "other bytes"])
def test_without_cuda_ipc_weights_go_through_the_object_store(algorithm, learner, one_gpu, monkeypatch, caplog, end):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    reductions = torch.multiprocessing.reductions
    original = reductions.reduce_tensor

    def exported(tensor):
        rebuild, handle = original(tensor)
        return (fails if end == "the engine's" else lambda *parts: rebuild(*parts) + 1), handle

    monkeypatch.setattr(reductions, "reduce_tensor", fails if end == "the learner's" else exported)
    transfer = pushed_by(ipc.IPCRoute(), algorithm, learner)
    assert transfer.kind is TransferKind.OBJECT_STORE
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith("weights go through Ray's object store from now on: no CUDA IPC")
    assert "expandable_segments" in warning and "\n" not in warning
    assert sender_of(learner).lent is None


def test_who_insists_on_cuda_ipc_gets_the_reason_and_the_fix_in_a_line(algorithm, learner, one_gpu, monkeypatch):
    monkeypatch.setattr(torch.multiprocessing.reductions, "reduce_tensor", fails)
    transfer = StreamedTransfer(ipc.IPCRoute(), SERIALIZATION)
    with pytest.raises(TransferUnavailable, match="^env_runners.weight_transfer: no CUDA IPC.*fix: .*=auto$"):
        transfer.push(algorithm.learner_group, algorithm.env_runner_group, 60)


class Communicator:
    disabled = destroyed = False

    def destroy(self):
        self.destroyed = True


@pytest.fixture
def nobody_comes(monkeypatch):
    """A rendezvous that ends when it is told to, with a communicator."""
    end, communicator = threading.Event(), Communicator()

    def wait(device, rendezvous):
        end.wait()
        return communicator

    monkeypatch.setattr(nccl, "open_group", wait)
    monkeypatch.setattr(nccl, "_workers", lambda runner: 1)
    yield end, communicator
    end.set()


@pytest.mark.parametrize("engine_answers", [False, True])
def test_a_learner_does_not_wait_for_ever_for_an_nccl_group(
    algorithm, learner, nobody_comes, monkeypatch, caplog, engine_answers
):
    monkeypatch.setattr(nccl, "_join", (lambda *a, **b: None) if engine_answers else fails)
    monkeypatch.setattr(nccl, "AFTERWARDS_S", 0.1)
    transfer = pushed_by(nccl.NCCLRoute(), algorithm, learner)
    assert transfer.kind is TransferKind.OBJECT_STORE
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "no NCCL group of 2 processes" in warning and "the learner still waits for the others" in warning
    end, communicator = nobody_comes
    end.set()
    for thread in threading.enumerate():
        if thread.name == "nccl-rendezvous":
            thread.join()
    assert communicator.destroyed, "a group that comes too late is not kept"


def test_a_group_that_forms_is_used(algorithm, learner, nobody_comes, monkeypatch):
    end, communicator = nobody_comes
    monkeypatch.setattr(nccl, "_join", lambda *a, **b: end.set())
    prepare(nccl.NCCLRoute(), algorithm)
    assert sender_of(learner).communicator is communicator and not communicator.destroyed
    sender_of(learner).communicator = None


def test_a_learner_without_an_nccl_library_says_so(algorithm, learner, nobody_comes, monkeypatch):
    end, communicator = nobody_comes
    communicator.disabled = True
    monkeypatch.setattr(nccl, "_join", lambda *a, **b: end.set())
    with pytest.raises(TransferUnavailable, match="the learner finds no NCCL library"):
        prepare(nccl.NCCLRoute(), algorithm)
