"""Which arms a command line asks for."""

from pathlib import Path

import pytest

from algorithms.config.errors import ConfigError
from algorithms.config.files import read_sections
from benchmarks.ablation.arms import ARMS, chosen_arms
from tests.shipped_files import training_files


def test_shipped_arms_come_in_the_order_asked_for():
    assert chosen_arms(["r3", "grpo"], [], None) == [ARMS["r3"], ARMS["grpo"]]


def test_every_preset_that_says_how_to_train_is_an_arm():
    methods = {file.stem for file in training_files() if not {"base", "environment"} & read_sections(file).keys()}
    assert methods <= {Path(arm.method or "grpo").stem for arm in ARMS.values()}


def test_each_leave_one_out_and_single_arm_sets_its_mechanisms_off():
    switch = ".enabled=false"
    off = {name: {text.removesuffix(switch) for text in ARMS[name].settings if text.endswith(switch)} for name in ARMS}
    everything = {"replay", "reflection", "ranking"}
    for without, alone, section in (
        ("r3-no-ccr", "ccr", "replay"),
        ("r3-no-isr", "isr", "reflection"),
        ("r3-no-serr", "serr", "ranking"),
    ):
        assert off[without] == {section}
        assert off[alone] == everything - {section}


def test_an_arm_of_ones_own_adds_settings_to_its_base_and_is_run():
    arms = chosen_arms(["grpo"], ["hot=r3-no-isr:training.lr=2e-4,evaluation.k=[1, 2],replay.k=2"], None)
    assert [arm.name for arm in arms] == ["grpo", "hot"]
    assert arms[1].algorithm == "r3_grpo"
    assert arms[1].settings == (
        *ARMS["r3-no-isr"].settings,
        "training.lr=2e-4",
        "evaluation.k=[1, 2]",
        "replay.k=2",
    )


def test_an_arm_may_be_based_on_one_defined_before():
    arms = chosen_arms([], ["a=dapo:training.lr=1e-4", "b=a:training.grad_clip=0"], None)
    assert arms[1].method == "dapo.yaml"
    assert arms[1].settings == ("training.lr=1e-4", "training.grad_clip=0")


def test_a_file_gives_arms_their_own_settings_which_come_last(tmp_path):
    file = tmp_path / "best.yaml"
    file.write_text("r3-no-ccr: {training.lr: 3e-4, evaluation.k: [1, 2]}\nmine: {replay.k: 2}\n")
    arms = chosen_arms(["r3-no-ccr", "grpo"], ["mine=r3:replay.k=3"], file)
    assert arms[0].settings == (*ARMS["r3-no-ccr"].settings, "training.lr=0.0003", "evaluation.k=[1, 2]")
    assert arms[1] == ARMS["grpo"]
    assert arms[2].settings == (*ARMS["r3"].settings, "replay.k=3", "replay.k=2")


@pytest.mark.parametrize(
    ("names", "own", "file", "message"),
    [
        (["grop"], [], None, r"--arms: no arm 'grop'; did you mean grpo\?"),
        ([], ["mine"], None, "--arm: 'mine' defines no arm; fix: --arm NAME=BASE:"),
        ([], ["mine=r4"], None, r"--arm: no arm 'r4'; known: grpo, r3, "),
        ([], ["r3=grpo"], None, "--arm: there is an arm r3 already; fix: another name"),
        ([], [], "r3-no-cr: {replay.k: 2}", r"no arm 'r3-no-cr'; did you mean r3-no-ccr\?"),
        ([], [], "r3: 2", "r3: 2 is no mapping; fix: r3: {training.lr: 1e-4}"),
    ],
)
def test_mistakes_are_one_line_with_the_fix(names, own, file, message, tmp_path):
    if file:
        (tmp_path / "arms.yaml").write_text(file)
    with pytest.raises(ConfigError, match=message):
        chosen_arms(names, own, tmp_path / "arms.yaml" if file else None)
