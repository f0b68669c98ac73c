"""Reward functions of IFEval for `r3env/Function-v0`: whether a response follows its prompt's instructions.

The checks are those of the package if-verifiable, which keeps the benchmark's own. Two of them, `number_sentences` and
`capital_word_frequency`, split text with NLTK's data `punkt_tab`: without package or data this module cannot be
imported, so that no environment is made that would count their errors as failures.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from r3env.core import Reason, Verdict

try:
    from if_verifiable import IFEvalSample, evaluate_output_for_sample
    from if_verifiable.ifeval.instructions_registry import INSTRUCTION_DICT
    from nltk.tokenize.punkt import PunktTokenizer
except ModuleNotFoundError as error:
    raise ImportError(f"IFEval needs the package {error.name}; fix: pip install -e '.[ifeval]'") from None


def check_punkt() -> None:
    """Load NLTK's sentence tokenizer once.

    Raises:
        ImportError: Its data are not on this machine.
    """
    try:
        PunktTokenizer()
    except LookupError:
        raise ImportError(
            "IFEval needs NLTK's data punkt_tab, which this machine has not; fix: python -m nltk.downloader punkt_tab"
        ) from None


check_punkt()


def ifeval(problem: str, response: str, instruction_id_list: Sequence[str], kwargs: Sequence[Any]) -> Verdict:
    """Judge a response to a prompt of IFEval: correct if every instruction is followed to the letter.

    The score is the share of instructions that are followed.

    Args:
        problem: The prompt.
        response: Text before `</think>` is no part of the answer.
        instruction_id_list: The instructions, by the benchmark's names.
        kwargs: What each of them takes.

    Raises:
        ValueError: The package has no check for an instruction.
    """
    return _judged(problem, response, instruction_id_list, kwargs, "strict_pass")


def ifeval_loose(problem: str, response: str, instruction_id_list: Sequence[str], kwargs: Sequence[Any]) -> Verdict:
    """Judge a response as `ifeval` does, but forgive its first line, its last line and its asterisks."""
    return _judged(problem, response, instruction_id_list, kwargs, "loose_pass")


def _judged(problem: str, response: str, instructions: Sequence[str], kwargs: Sequence[Any], criterion: str) -> Verdict:
    if unknown := [name for name in instructions if name not in INSTRUCTION_DICT]:
        raise ValueError(f"instruction_id_list: IFEval has no instruction {unknown[0]!r}")
    given = [dict(one) if isinstance(one, Mapping) else {} for one in kwargs]
    sample = IFEvalSample(key=0, prompt=problem, instruction_id_list=list(instructions), kwargs=given)
    results, _ = evaluate_output_for_sample("ifeval", sample, response)  # none for an empty response
    missed = [one.instruction_id for one in results if not getattr(one, criterion)]
    correct = bool(results) and not missed
    score = (len(results) - len(missed)) / len(instructions)
    feedback = f"not followed: {', '.join(missed)}" if missed else ""
    return Verdict(correct, Reason.EQUAL if correct else Reason.DIFFERENT, score, feedback)
