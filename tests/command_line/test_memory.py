"""What `--check` says of memory is what a run takes on a CPU."""

import re
import subprocess
import sys

import pytest

from tests.shapes import enlarge

# Large enough that the model outweighs the libraries.
SIZES = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 6, "vocab_size": 24_000}
PROGRAM = """
import sys
from algorithms.utils.process import prepare
prepare()
from algorithms.config.loading import load
from algorithms.grpo.config import GRPOConfig
from algorithms.preflight.check import check
from algorithms.train.loop import _build

config, run = load(None, sys.argv[1:], GRPOConfig)
print([line for line in check(config, run).lines if line.startswith("processes")][0])
algorithm = _build(config, 0)
for _ in range(2):  # the second has the moments of AdamW
    algorithm.train()
peak = [line for line in open("/proc/self/status") if line.startswith("VmHWM")][0]
print("measured", int(peak.split()[1]) / 2**20, "GiB")
algorithm.stop()
"""


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["llama", "gemma2"])  # packed rows and a head of its own; padded rows and a tied one
def test_what_check_says_of_the_driver_is_what_it_takes(shape, shaped_model, tmp_path):
    folder = enlarge(shaped_model(shape), tmp_path / shape, **SIZES)
    problems = tmp_path / "problems.jsonl"
    problems.write_text("".join(f'{{"problem": "What is {n} + {n}?", "answer": "{2 * n}"}}\n' for n in range(10, 26)))
    settings = [
        f"rl_module.model={folder}",
        f"environment.data={problems}",
        *("env_runners.engine=transformers", "env_runners.max_response_tokens=12", "env_runners.num_threads=1"),
        *("training.group_size=2", "training.queries_per_step=4", "training.beta=0.01", "learners.num_threads=1"),
        *("evaluation.samples=1", "evaluation.k=[1]", "evaluation.limit=1"),
    ]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *settings], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    said = float(re.search(r"driver ([\d.]+) GiB at most", done.stdout)[1])
    measured = float(re.search(r"measured ([\d.]+) GiB", done.stdout)[1])
    assert measured == pytest.approx(said, rel=0.15)
