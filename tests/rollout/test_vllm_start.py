"""vLLM's start is visible, and where it fails it is one line with the fix."""

import logging

import pytest

from algorithms.rollout.engines.factory import make_engine
from algorithms.rollout.engines.vllm_start import EngineDidNotStart, _one_line, _stages_reported
from algorithms.utils.errors import RunError

SAID = [
    (
        "To serve at least one request with the model's max seq len (40960), (1.88 GiB KV cache is needed, which is "
        "larger than the available KV cache memory (0.99 GiB).",
        "env_runners.max_model_len",
    ),
    ("No available memory for the cache blocks. Try increasing `gpu_memory_utilization`", "gpu_memory_utilization"),
    (
        "Free memory on device cuda:0 (10.1/79.1 GiB) on startup is less than desired GPU memory utilization (0.9)",
        "a smaller env_runners.gpu_memory_utilization",
    ),
    ("CUDA out of memory. Tried to allocate 20.00 GiB.", "tensor_parallel_size"),
    ("Model architectures ['FooForCausalLM'] are not supported for now.", "env_runners.engine=transformers"),
    ("Bfloat16 is only supported on GPUs with compute capability of at least 8.0.", "env_runners.dtype=float16"),
    ("EngineArgs.__init__() got an unexpected keyword argument 'blok_size'", "env_runners.vllm"),
    ("something new", "R3_VERBOSE=1"),
]


@pytest.mark.parametrize(("said", "fix"), SAID)
def test_what_vllm_says_is_one_line_with_a_fix(said, fix):
    line = _one_line(ValueError(f"{said}\nsecond line"))
    assert line.startswith("env_runners.engine: vLLM did not start: ")
    reason, _, ending = line.partition("; fix: ")
    assert said.rstrip(".")[:60] in reason and fix in ending
    assert "\n" not in line


def test_an_error_without_words_is_named():
    assert "vLLM did not start: KeyError; fix: " in _one_line(KeyError())


def test_it_ends_a_command_in_one_line():
    assert issubclass(EngineDidNotStart, RunError)


@pytest.mark.vllm
def test_what_vllm_refuses_in_this_process_is_one_line_with_the_fix(model_folder, end_tokens):
    settings = {"model": model_folder, "dtype": "float32", "max_num_seqs": 4, "eos_token_ids": end_tokens}
    with pytest.raises(EngineDidNotStart) as raised:
        make_engine("vllm", **settings, options={"quantization": "nonsense"})
    (line,) = str(raised.value).splitlines()
    assert line.startswith("env_runners.engine: vLLM did not start: Value error, Unknown quantization method")
    assert "; fix: correct env_runners.vllm" in line


@pytest.mark.vllm
def test_stages_are_read_from_the_log_and_only_errors_are_printed(monkeypatch):
    monkeypatch.delenv("R3_VERBOSE", raising=False)
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")
    logger = logging.getLogger("vllm")
    before = (list(logger.handlers), logger.propagate)
    stages: list[str] = []
    with _stages_reported(stages.append) as arguments:
        child = logging.getLogger("vllm.somewhere")
        child.info("Starting to load model %s...", "m")
        child.info("Loading weights took 1.2 seconds")
        child.info("Model loading took 1 GiB")  # no stage of its own
        child.info("Warming up model for the compilation...")
        child.debug("Capturing")  # nobody reads it
    child.info("Starting to load model again")
    assert stages == ["loading weights", "preparing", "compiling and warming up"]
    assert (list(logger.handlers), logger.propagate) == before
    assert not child.isEnabledFor(logging.WARNING) and child.isEnabledFor(logging.ERROR)
    assert not arguments["logging_config"].configure_logging


@pytest.mark.vllm
def test_with_r3_verbose_vllm_logs_as_it_does(monkeypatch):
    monkeypatch.setenv("R3_VERBOSE", "1")
    with _stages_reported(lambda stage: None) as arguments:
        assert arguments == {}
