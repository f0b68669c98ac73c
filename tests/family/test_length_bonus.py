"""R³'s bonus for short answers, `reward.length_bonus`: its value in every preset, and where its authors say so."""

from types import SimpleNamespace
from typing import NamedTuple

import pytest
import yaml

from algorithms.config.files import configs_folder
from algorithms.config.loading import load
from algorithms.grpo.config import GRPOConfig
from algorithms.r3_grpo.config import R3GRPOConfig
from algorithms.train.evaluated_run import EvaluateConfig
from website.settings import reference

from .conftest import Stages, as_groups, hand_made


class Bonus(NamedTuple):
    """What a preset says; None: nothing, so that it is the algorithm's (0 of GRPO, 1 of R³)."""

    value: float | None
    source: str


OUTCOME = "the reward is the outcome alone: "
TASK = "a method on top of another; it says nothing of rewards: "
PRESETS = {
    # R³ is the paper that pays for brevity.
    "paper": Bonus(1.0, "2601.19620, the reward: c · (1 + max(0, 1 - l / 32768))"),
    "paper_r1_1p5b": Bonus(1.0, "paper.yaml"),
    "paper_r1_7b": Bonus(1.0, "paper.yaml"),
    # Tasks: the algorithm decides.
    "own_model_1gpu": Bonus(None, "this library's: algorithms.grpo trains on correctness"),
    "colab_t4": Bonus(None, "this library's: algorithms.grpo trains on correctness"),
    "own_model_8gpu": Bonus(None, "own_model_1gpu.yaml"),
    "deepscaler_r1_1p5b": Bonus(None, "this library's: R³ as in the paper, GRPO on correctness"),
    **{
        f"deepscaler_r1_{name}": Bonus(None, "deepscaler_r1_1p5b.yaml")
        for name in ("1p5b_1gpu", "1p5b_16gpu", "1p5b_shared", "7b", "7b_16gpu")
    },
    "laptop": Bonus(0.0, "this library's: answers of 64 tokens would all get the same bonus on a scale of 32768"),
    "laptop_math": Bonus(0.0, "this library's: answers of 48 tokens would all get the same bonus on a scale of 32768"),
    "quickstart": Bonus(0.0, "this library's: answers of 48 tokens would all get the same bonus on a scale of 32768"),
    # Members of the family that are a whole objective.
    "grpo": Bonus(0.0, OUTCOME + "2402.03300, section 4.1"),
    "dapo": Bonus(0.0, "2503.14476, section 2.4: 1 or -1 by correctness; lengths enter by Eq. 13 alone"),
    "dr_grpo": Bonus(0.0, OUTCOME + "2503.20783, section 3: 1 if correct, else 0"),
    "gspo": Bonus(0.0, OUTCOME + "2507.18071: a verifier's r in [0, 1]"),
    "cispo": Bonus(0.0, OUTCOME + "2506.13585: rule-based verifiers"),
    "rloo": Bonus(0.0, "2402.14740: a reward model's score and a KL"),
    "ngrpo": Bonus(0.0, OUTCOME + "2509.18851, whose virtual response gets 1, the largest reward"),
    "w_reinforce": Bonus(0.0, OUTCOME + "2506.01347: 1 or -1, each with its weight"),
    "rl_zvp": Bonus(0.0, "2509.21880, Eq. 5: groups of equal rewards are its object, which a bonus would tell apart"),
    "sapo": Bonus(0.0, OUTCOME + "2511.20347"),
    "dppo": Bonus(0.0, OUTCOME + "2602.04879, authors' script"),
    "gmpo": Bonus(0.0, OUTCOME + "2507.20673, rewards of Dr. GRPO's code"),
    "ma_rlhf": Bonus(0.0, "2410.02743: a reward model's score and a KL"),
    "mdpo": Bonus(0.0, "2005.09814: the environment's rewards"),
    "bcpg_nsa": Bonus(0.0, "2505.14403, notes: 1 if correct, else 0"),
    "rover": Bonus(0.0, OUTCOME + "2509.24981, authors' code"),
    "clip_cov": Bonus(0.0, OUTCOME + "2505.22617, authors' code: recipe/entropy/reward.py"),
    "kl_cov": Bonus(0.0, "clip_cov.yaml"),
    "entropy_bonus": Bonus(0.0, OUTCOME + "2505.22312: 1 if verified, else 0"),
    "hgpo": Bonus(0.0, "2602.22817: the environment's rewards"),
    "gigpo": Bonus(0.0, "2505.10978: the environment's rewards"),
    "sdpo": Bonus(0.0, "lasgroup/SDPO, sdpo.yaml: no reward enters but whether it reaches the success threshold"),
    "opd": Bonus(0.0, "2306.13649: the teacher's log-probs, no reward"),
    "gdpo": Bonus(0.0, "2601.05242: rewards are those of the functions; a bonus for length is one of them"),
    "ace": Bonus(0.0, OUTCOME + "2602.21420, abstract"),
    "rlep": Bonus(0.0, "recipe/rlep/rlep_training.sh: reward_manager=dapo with its overlong buffer, no bonus"),
    "luffy": Bonus(0.0, OUTCOME + "authors' code, luffy/deepscaler/rewards/math_reward.py"),
    "exgrpo": Bonus(0.0, OUTCOME + "authors' code, ExGRPO/exgrpo/verl/verl/mix_src/math_verify_reward.py"),
    # Samplers and mechanisms that are combined with a member.
    "adcl": Bonus(None, TASK + "2505.08364, abstract"),
    "egsr": Bonus(None, TASK + "2505.08364, abstract"),
    "cog_drift": Bonus(None, TASK + "2604.04767, authors' code: GRPO"),
    "dph_rl": Bonus(None, TASK + "2509.07430, authors' code: GRPO or DAPO"),
    "fission": Bonus(None, TASK + "2601.15625, notes: format, correctness and length, the environment's business here"),
    "gdro": Bonus(None, TASK + "2601.19280, sections 2 to 4"),
    "greso": Bonus(None, TASK + "2506.02177, on top of DAPO"),
    "knapsack": Bonus(None, TASK + "2509.25849"),
    "laser": Bonus(None, TASK + "2510.14943, authors' code: GRPO"),
    "prefix_rl": Bonus(None, TASK + "2601.18795, notes"),
    "rorecomp": Bonus(None, TASK + "2509.25958, abstract: brevity by what is trained on, not by the reward"),
    "scaf_grpo": Bonus(None, TASK + "authors' code: GRPO"),
    "svs": Bonus(None, TASK + "2508.14029, authors' code: accuracies alone"),
    "self": Bonus(None, TASK + "2510.02230, authors' code"),
    "vade": Bonus(None, TASK + "2511.18902, abstract"),
    "vas": Bonus(None, TASK + "2509.21268, section 3"),
    "window": Bonus(None, TASK + "no paper"),
    "prerl": Bonus(None, TASK + "2604.14142, authors' code: GRPO"),
    "arena_rl": Bonus(None, TASK + "2601.06487, authors' code: ranks alone"),
    "med_grpo": Bonus(None, TASK + "2512.06581, abstract and notes: the reward of each data set"),
    "rep_exp": Bonus(None, TASK + "2510.11686, authors' code: GRPO"),
    "delethink": Bonus(0.0, OUTCOME + "2510.06557, authors' code"),
    "supo": Bonus(0.0, OUTCOME + "2510.06727, notes"),
    # Evaluations have no reward.
    **{f"eval_{name}": Bonus(None, "an evaluation") for name in ("paper", "gsm8k", "choice", "ifeval", "ifbench")},
}


def test_the_table_has_every_preset_and_a_source_for_each():
    assert set(PRESETS) == {path.stem for path in configs_folder().glob("*.yaml")}
    assert all(bonus.source for bonus in PRESETS.values())


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_the_length_bonus_of_its_authors(name):
    file, stated = configs_folder() / f"{name}.yaml", PRESETS[name].value
    here = (yaml.safe_load(file.read_text()).get("reward") or {}).get("length_bonus")
    assert here == stated or name.startswith("paper_r1_"), "these take it from paper.yaml"
    if name.startswith("eval_"):
        return
    found = [load(file, [], kind)[0].reward_settings.length_bonus for kind in (GRPOConfig, R3GRPOConfig)]
    assert found == ([0.0, 1.0] if stated is None else [stated] * 2)


def test_grpo_trains_on_correctness_and_r3_pays_for_brevity_unless_a_file_says_otherwise(lm):
    assert GRPOConfig().reward_settings.length_bonus == EvaluateConfig().reward_settings.length_bonus == 0.0
    assert R3GRPOConfig().reward_settings.length_bonus == 1.0
    for config, paid in ((GRPOConfig(), 1.0), (R3GRPOConfig(), 2 - 3 / 32768)):
        groups = as_groups(hand_made(lm, own=0.0, shared=0.0, fresh=True))
        Stages(config).shape_rewards(SimpleNamespace(rolled_out=groups, groups=groups))
        assert groups[0].samples[1].rollout.response_length == 3 and groups[0].samples[1].reward == paid
    one = R3GRPOConfig().reward(length_bonus_max_tokens=100).copy()
    assert one.to_sections()["reward"] == R3GRPOConfig().to_sections()["reward"] | {"length_bonus_max_tokens": 100}


def test_the_reference_says_both_defaults():
    (row,) = {line for line in reference().splitlines() if line.startswith("| `reward.length_bonus` ")}
    assert "`0.0`" in row and "1 with algorithms.r3_grpo" in row
