import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NUMPY_ONLY = [
    "algorithms.grpo.advantages",
    "algorithms.grpo.mechanism",
    "algorithms.grpo.rewards",
    "algorithms.history",
    "algorithms.losses.term",
    "algorithms.methods.covariance",
    "algorithms.methods.entropy_bonus",
    "algorithms.methods.hgpo",
    "algorithms.methods.ngrpo",
    "algorithms.methods.posterior",
    "algorithms.methods.rl_zvp",
    "algorithms.methods.w_reinforce",
    "algorithms.methods.adcl",
    "algorithms.methods.cog_drift",
    "algorithms.methods.exgrpo",
    "algorithms.methods.fission",
    "algorithms.methods.gdro",
    "algorithms.methods.greso",
    "algorithms.methods.knapsack",
    "algorithms.methods.prefix_rl",
    "algorithms.methods.prefixes",
    "algorithms.methods.dph_rl",
    "algorithms.methods.laser",
    "algorithms.methods.rorecomp",
    "algorithms.methods.scaf_grpo",
    "algorithms.methods.svs",
    "algorithms.methods.self_filter",
    "algorithms.methods.ace",
    "algorithms.methods.gdpo",
    "algorithms.methods.rep_exp",
    "algorithms.methods.med_grpo",
    "algorithms.methods.arena_rl",
    "algorithms.methods.rover",
    "algorithms.methods.prerl",
    "algorithms.methods.bcpg_nsa",
    "algorithms.methods.opd",
    "algorithms.methods.sdpo",
    "algorithms.methods.vas",
    "algorithms.methods.window",
    "algorithms.r3_grpo.ranking",
    "algorithms.r3_grpo.reflection",
    "algorithms.r3_grpo.replay",
    "algorithms.evaluation.metrics",
]
WITH_TORCH = [
    "algorithms.learner.batch",
    "algorithms.learner.loss",
    "algorithms.losses.base",
    "algorithms.learner.chunked_logprobs",
]


@pytest.mark.parametrize(
    ("modules", "kept_out"),
    [(NUMPY_ONLY, {"ray", "torch", "vllm", "transformers"}), (WITH_TORCH, {"ray", "vllm", "transformers"})],
    ids=["numpy only", "with torch"],
)
def test_the_maths_import_nothing_heavier_than_they_need(modules, kept_out):
    code = f"import sys, {', '.join(modules)}; print(sorted({kept_out!r} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
