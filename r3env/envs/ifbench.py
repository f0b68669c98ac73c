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

    The score is the share of instructions that are followed.

    Args:
        problem: The prompt.
        response: Text before `</think>` is no part of the answer.
        instruction_id_list: The instructions, by the benchmark's names.
        kwargs: What each of them takes.

    Raises:
        ValueError: The package has no check for an instruction.
    """
    return judge("IFBench", INSTRUCTION_DICT, problem, response, instruction_id_list, kwargs, "strict_pass")


def ifbench_loose(problem: str, response: str, instruction_id_list: Sequence[str], kwargs: Sequence[Any]) -> Verdict:
    """Judge a response as `ifbench` does, but forgive its first line, its last line and its asterisks."""
    return judge("IFBench", INSTRUCTION_DICT, problem, response, instruction_id_list, kwargs, "loose_pass")
