"""Reward functions of IFEval for `r3env/Function-v0`: whether a response follows its prompt's instructions.

The checks are those of the package if-verifiable, which keeps the benchmark's own. Two of them, `number_sentences` and
`capital_word_frequency`, split text with NLTK's data `punkt_tab`: without package or data this module cannot be
imported, so that no environment is made that would count their errors as failures.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from r3env.core import Reason, Verdict

try:
    import nltk
    from if_verifiable.common import evaluate_instructions
    from if_verifiable.ifeval.instructions_registry import INSTRUCTION_DICT
except ModuleNotFoundError as error:
    package = str(error.name).partition(".")[0]
    raise ImportError(f"IFEval needs the package {package}; fix: pip install -e '.[ifeval]'") from None


def need_nltk_data(benchmark: str, *paths: str) -> None:
    """Find data of NLTK.

    Raises:
        ImportError: Some are not on this machine.
    """
    missing = []
    for path in paths:
        try:
            nltk.data.find(path)
        except LookupError:
            missing.append(path.rpartition("/")[2])
    if missing:
        names = " ".join(missing)
        raise ImportError(
            f"{benchmark} needs NLTK's data {names}, which this machine has not; fix: python -m nltk.downloader {names}"
        )


need_nltk_data("IFEval", "tokenizers/punkt_tab")


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
    return judge("IFEval", INSTRUCTION_DICT, problem, response, instruction_id_list, kwargs, "strict_pass")


def ifeval_loose(problem: str, response: str, instruction_id_list: Sequence[str], kwargs: Sequence[Any]) -> Verdict:
    """Judge a response as `ifeval` does, but forgive its first line, its last line and its asterisks."""
    return judge("IFEval", INSTRUCTION_DICT, problem, response, instruction_id_list, kwargs, "loose_pass")


def judge(
    benchmark: str,
    checks: Mapping[str, Any],
    problem: str,
    response: str,
    instructions: Sequence[str],
    kwargs: Sequence[Any],
    criterion: str,
) -> Verdict:
    """Judge a response by a benchmark's checks; their names, and what each takes, are the data's."""
    if unknown := [name for name in instructions if name not in checks]:
        raise ValueError(f"instruction_id_list: {benchmark} has no instruction {unknown[0]!r}")
    given = [dict(one) if isinstance(one, Mapping) else {} for one in kwargs]
    # None for an empty response.
    results, _ = evaluate_instructions(response, list(instructions), given, problem, dict(checks))
    missed = [one.instruction_id for one in results if not getattr(one, criterion)]
    correct = bool(results) and not missed
    score = (len(results) - len(missed)) / len(instructions)
    feedback = f"not followed: {', '.join(missed)}" if missed else ""
    return Verdict(correct, Reason.EQUAL if correct else Reason.DIFFERENT, score, feedback)
