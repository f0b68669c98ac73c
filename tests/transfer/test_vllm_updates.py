"""vLLM's own update sequence on the real engine: buckets, sleep, updates that break off, and a backend of our own."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from algorithms.config.placement import TransferKind
from algorithms.rollout.engines.base import GenerationRequest
from algorithms.rollout.types import Sampling
from algorithms.rollout.weight_sync.object_store import ObjectStoreTransfer
from algorithms.rollout.weight_sync.serialization import NO_VERSION, TENSORS, Serialization, TensorSpec, unpack
from algorithms.rollout.weight_sync.streamed import StreamedTransfer, bucket_fields

from .conftest import BUCKET_BYTES

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
SERIALIZATION = Serialization("float32", BUCKET_BYTES)
BACKEND = "test_files"


@pytest.fixture(scope="module")
def algorithm(build):
    register_file_backend()
    options = {"max_model_len": 128, "enforce_eager": True, "weight_transfer_config": {"backend": BACKEND}}
    return build(engine="vllm", max_num_seqs=8, gpu_memory_utilization=0.2, vllm=options)


@pytest.fixture
def engine(algorithm):
    return algorithm.env_runner_group.local_env_runner.engine


@pytest.fixture
def lm(algorithm):
    return algorithm.learner_group._learner.lm


def gap(engine, lm):
    """The largest difference of a log-prob between the engine and the learner's model."""
    prompt = np.array([5, 6, 7, 8], np.int32)
    completions = engine.generate([GenerationRequest(prompt, seed, Sampling(1.0, 1.0, 12)) for seed in range(6)])
    largest = 0.0
    for completion in completions:
        tokens = torch.from_numpy(np.concatenate([prompt, completion.tokens]).astype(np.int64))
        with torch.no_grad():
            logprobs = lm(input_ids=tokens[None]).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        own = logprobs.gather(-1, tokens[len(prompt) :, None])[:, 0].numpy()
        largest = max(largest, float(np.abs(own - completion.logprobs).max()))
    return largest


def disturb(algorithm, lm):
    """New weights in the learner, as a new version."""
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter += 0.02 * torch.randn(parameter.shape)
    algorithm.learner_group._learner._weights_seq_no += 1


def test_in_one_process_the_engine_copies_the_live_weights(algorithm, engine, lm):
    disturb(algorithm, lm)
    assert gap(engine, lm) > 0.05
    algorithm.rollout_workers.push_weights()
    assert gap(engine, lm) < 1e-3
    assert (
        engine.weights_version == algorithm.rollout_workers.version == algorithm.learner_group._learner._weights_seq_no
    )


def test_the_object_store_does_the_same_in_buckets(algorithm, engine, lm):
    disturb(algorithm, lm)
    version = ObjectStoreTransfer(SERIALIZATION).push(algorithm.learner_group, algorithm.env_runner_group, 60)
    assert gap(engine, lm) < 1e-3
    assert engine.weights_version == version


def test_an_engine_that_sleeps_has_no_version_until_it_gets_weights(algorithm, engine, lm):
    algorithm.rollout_workers.engines_sleep = True
    algorithm.rollout_workers.sleep_engines()
    assert engine.weights_version == NO_VERSION
    disturb(algorithm, lm)
    algorithm.rollout_workers.push_weights()
    assert engine.weights_version == algorithm.rollout_workers.version
    assert gap(engine, lm) < 1e-3
    algorithm.rollout_workers.sleep_engines()  # as where a step fails behind this stage
    assert algorithm.sample("1 + 2")


def test_an_engine_does_not_sleep_while_responses_run(engine):
    engine.submit(3, GenerationRequest(np.array([5, 6], np.int32), 1, Sampling(1.0, 1.0, 8)))
    with pytest.raises(RuntimeError, match="cannot sleep: 1 requests are unfinished"):
        engine.sleep()
    engine.abort([3])


# A route like those between GPUs, with files for GPU memory: the learner's end offers and delivers as they do, and the
# engine's end is a backend that vLLM drives.


@dataclass(frozen=True)
class FileChannel:
    folder: Path
    concurrent: bool

    def sends(self, learner):
        return True

    def offer(self, learner, buffer):
        path = self.folder / "bucket"
        if not self.concurrent:
            path.write_bytes(buffer.numpy().tobytes())
        return str(path)

    def deliver(self, learner, packed):
        if self.concurrent:  # the engine waits for it in the meantime, as in a collective
            partial = self.folder / "partial"
            partial.write_bytes(packed.numpy().tobytes())
            partial.rename(self.folder / "bucket")
        while self.concurrent and (self.folder / "bucket").exists():
            pass


class FileRoute:
    kind = TransferKind.IPC

    def __init__(self, folder, concurrent):
        self.channel, self.concurrent = FileChannel(folder, concurrent), concurrent

    def prepare(self, learner_group, calls):
        calls(lambda runner: runner.engine.llm.init_weight_transfer_engine({"init_info": {"wait": self.concurrent}}))

    def update(self, offers):
        return {**bucket_fields(offers[0]), "path": offers[0].payload}


def register_file_backend():
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory
    from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo

    from algorithms.rollout.weight_sync.vllm_backends import TensorsEngine

    @dataclass
    class FileInit(WeightTransferInitInfo):
        wait: bool

    @dataclass
    class FileUpdate(WeightTransferUpdateInfo):
        names: list[str]
        dtype_names: list[str]
        shapes: list[list[int]]
        path: str

    class FileEngine(TensorsEngine):
        init_info_cls, update_info_cls = FileInit, FileUpdate

        def init_transfer_engine(self, init_info):
            self.wait = init_info.wait

        def receive_weights(self, update_info):
            path = Path(update_info.path)
            while self.wait and not path.exists():
                pass
            buffer = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
            if self.wait:
                path.unlink()
            fields = zip(update_info.names, update_info.shapes, update_info.dtype_names, strict=True)
            self.model.load_weights(unpack(buffer, [TensorSpec(n, tuple(s), d) for n, s, d in fields]))

        def update_weights(self, update_info):
            if TENSORS in update_info:
                super().update_weights(update_info)
            else:  # vLLM's own would wait for a GPU
                self.receive_weights(self.parse_update_info(update_info))

    WeightTransferEngineFactory.register_engine(BACKEND, FileEngine)


@pytest.mark.parametrize("concurrent", [False, True], ids=["like CUDA IPC", "like NCCL"])
def test_a_route_between_gpus_drives_a_backend_of_vllm(algorithm, engine, lm, tmp_path, concurrent):
    transfer = StreamedTransfer(FileRoute(tmp_path, concurrent), SERIALIZATION)
    for _ in range(2):
        disturb(algorithm, lm)
        version = transfer.push(algorithm.learner_group, algorithm.env_runner_group, 60)
        assert engine.weights_version == version
        assert gap(engine, lm) < 1e-3


# Last, because they use the engine up.


def test_part_of_the_weights_is_no_version(engine, lm):
    tensors = list(lm.state_dict().items())
    engine.start_weights({name: tuple(tensor.shape) for name, tensor in tensors})
    engine.add_weights({TENSORS: tensors[:-1]})
    with pytest.raises(RuntimeError, match=tensors[-1][0]):
        engine.finish_weights(77)
    assert engine.weights_version == NO_VERSION


def test_an_engine_whose_update_broke_off_takes_no_other(algorithm, engine, lm):
    with pytest.raises(RuntimeError, match="was interrupted and left"):
        engine.load_weights(lm.state_dict(), 78)
    with pytest.raises(RuntimeError, match="was interrupted and left"):
        algorithm.rollout_workers.push_weights()
    assert engine.weights_version == NO_VERSION
