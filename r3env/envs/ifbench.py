"""Reward functions of IFBench for `r3env/Function-v0`: its 58 kinds of instruction, by the package if-verifiable.

As `r3env.envs.instructions` for IFEval, this module cannot be imported without the package and the data that its
checks read; the package would else try to download them in every process.
"""

from collections.abc import Sequence
from typing import Any

from r3env.core import Verdict
from r3env.envs.instructions import judge, need_nltk_data

need_nltk_data(
    "IFBench",
    "tokenizers/punkt",
    "tokenizers/punkt_tab",
    "taggers/averaged_perceptron_tagger_eng",
    "corpora/stopwords",
)

from if_verifiable.ifbench.instructions_registry import INSTRUCTION_DICT  # noqa: E402


def ifbench(problem: str, response: str, instruction_id_list: Sequence[str], kwargs: Sequence[Any]) -> Verdict:
    """Judge a response to a prompt of IFBench: correct if every instruction is followed to the letter.

    Score, arguments and errors are those of `r3env.envs.instructions.ifeval`.
    """
    return judge("IFBench", INSTRUCTION_DICT, problem, response, instruction_id_list, kwargs, "strict_pass")


def ifbench_loose(problem: str, response: str, instruction_id_list: Sequence[str], kwargs: Sequence[Any]) -> Verdict:
    """Judge a response as `ifbench` does, but forgive its first line, its last line and its asterisks."""
    return judge("IFBench", INSTRUCTION_DICT, problem, response, instruction_id_list, kwargs, "loose_pass")
