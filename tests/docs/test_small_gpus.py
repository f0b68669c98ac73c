"""The page of what models need, and the notebook for a T4: computed by the code of `--check`."""

import importlib.util
import json
import shlex
from pathlib import Path

import pytest

from algorithms.config.files import configs_folder
from algorithms.config.loading import load
from algorithms.grpo.config import GRPOConfig
from algorithms.preflight.context_window import ContextUse
from algorithms.preflight.fitting import needed_gpu_bytes
from website.expected import CARDS, SIZES, Card, Work
from website.memory import MODELS, expected_row, head, row, sized

ROOT = Path(__file__).parents[2]


def test_the_page_has_what_the_check_counts():
    page = (ROOT / "docs/reference/memory.md").read_text()
    again = "run python -m website.memory > docs/reference/memory.md"
    assert page.startswith(head()), again
    for name in ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B"):  # the others take as long
        assert row(name) in page, again
    assert all(f"| `{name}` |" in page for name in MODELS), again
    assert expected_row("Qwen/Qwen3-8B") in page, again


def test_cards_have_what_the_driver_reports_of_them():
    # An A10 with ECC on has 23,028 MiB and not 24,576; --check reads the same number.
    assert {name: round(mib / 1024, 1) for name, mib in SIZES.items()} == {
        "16 GB": 15.0,
        "24 GB": 22.5,
        "40 GB": 40.0,
        "80 GB": 79.6,
    }
    assert all(card.gib * 1024 == SIZES[name.split(" (")[0]] for name, card in CARDS.items())


def test_a_step_takes_what_two_divisions_by_hand_give():
    card = Card(80.0, flops=1e14, bandwidth=1e12)
    work = Work(10**9, 10_000, at_once=10, responses=200, prompt=500, length=1000, trained=10**6, passes=4)
    # 2 GB of weights and 10 caches of 1,000 tokens, 0.1 GB, at 0.5 TB/s: 4.2 ms a token, 20 times 1,000 of them.
    # 8 FLOPs for each of 1e9 weights and 1e6 tokens, at 0.4 of 1e14 FLOP/s.
    assert work.seconds(card) == pytest.approx((84.0, 200.0))
    many = Work(10**9, 0, at_once=1000, responses=1000, prompt=0, length=1, trained=0, passes=4)
    assert many.seconds(card)[0] == pytest.approx(0.05)  # 2e12 FLOPs take longer than reading 2 GB


def test_the_file_for_a_t4_fits_on_one():
    with sized("Qwen/Qwen3-0.6B") as (facts, folder):
        config = load(configs_folder() / "colab_t4.yaml", [f"rl_module.model={folder}"], GRPOConfig)[0]
        config.check_settings()
        needed = needed_gpu_bytes(config, facts, ContextUse(prompt=300, plain=812, longest=812, row=812))
    assert config.rl_module_settings.model == folder and config.env_runners_settings.dtype == "float16"
    assert needed < 13 * 2**30  # of 15 GiB, beside CUDA and the libraries


def test_the_notebook_begins_with_what_nobody_has_run_and_its_commands_exist():
    cells = json.loads((ROOT / "examples/colab_t4.ipynb").read_text())["cells"]
    assert "*Computed, not run*" in cells[0]["source"]
    commands = [
        line.removeprefix("!python -m ").split(maxsplit=1)
        for cell in cells
        if cell["cell_type"] == "code"
        for line in cell["source"].splitlines()
        if line.startswith("!python -m ")
    ]
    assert len(commands) == 4
    for module, arguments in commands:
        assert importlib.util.find_spec(module)
        words = shlex.split(arguments)
        if "--config" in words:
            load(ROOT / words[words.index("--config") + 1], [w for w in words if "=" in w], GRPOConfig)
