"""How to read well-known data sets: their columns, and the place of the final answer.

The comments say where each schema is written down.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from r3env.data import questions

Cell = Any


@dataclass(frozen=True)
class Preset:
    """One data set's schema.

    Args:
        hub_id: The data set on the Hub.
        columns: Its column for each of our fields (`problem`, `answer`, `uid`, `level`).
        split: The split to read if none is named.
        evaluation_split: The split to evaluate on if none is named; None for the same one.
        configuration: Configuration of the Hub data set.
        answer: Turns the answer column into the reference answer; None or "" where a row has none.
        context: Column with text that belongs before the problem, often empty.
        only: Columns that must have a certain value, for example to leave out problems with pictures. A row
            without the column is kept.
        pose: Makes columns of a row anew from several of them, such as a problem with its options; it reads columns
            as `row[name]`, so that a missing one is named.
        instead: Columns that hold a field of ours in other copies of the data set, such as those of evaluation
            suites, in the order in which they are tried where a row lacks the one in `columns`.
        solution: Its column of worked solutions; None where it has none.
    """

    hub_id: str
    columns: Mapping[str, str]
    split: str = "train"
    evaluation_split: str | None = None
    configuration: str | None = None
    answer: Callable[[Cell], Cell] = field(default=lambda cell: cell)
    context: str | None = None
    only: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    pose: Callable[[Mapping[str, Cell]], Mapping[str, Cell]] | None = None
    instead: Mapping[str, Sequence[str]] = field(default_factory=lambda: MappingProxyType({}))
    solution: str | None = None


def _after_hashes(cell: Cell) -> Cell:
    """GSM8K: the worked solution ends in a line `#### 1,234`."""
    if not isinstance(cell, str):
        return cell
    _, found, answer = cell.rpartition("####")
    return answer.strip().replace(",", "") if found else None


def _boxed(cell: Cell) -> Cell:
    """AIME: a solution that is nothing but a box, or ends in one."""
    return _only_boxed(cell) or cell


def _only_boxed(cell: Cell) -> Cell:
    """MATH: a worked solution whose final answer is in a box; without one there is no answer."""
    if not isinstance(cell, str):
        return cell
    from r3env.grading.extraction import answer_in, reference_boxes

    boxes = reference_boxes(cell)
    return answer_in(boxes) if boxes else None


def _whole_number(cell: Cell) -> Cell:
    """AMC answers are floats, `27.0`, of whole numbers."""
    if isinstance(cell, str) and re.fullmatch(r"-?\d+\.0+", cell.strip()):
        cell = float(cell)
    return int(cell) if isinstance(cell, float) and cell.is_integer() else cell


def _join_answers(cell: Cell) -> Cell:
    """OlympiadBench: a list of answers, each between dollar signs; several are one answer, with commas."""
    if cell is None or isinstance(cell, str):
        answers = [cell or ""]
    elif isinstance(cell, list | tuple):
        answers = [str(answer) for answer in cell if answer is not None]
    else:
        return cell
    return ", ".join(re.sub(r"(?<!\\)\$", "", answer).strip() for answer in answers)


_PROBLEM = MappingProxyType({"problem": ("problem",)})

PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        # Columns problem, answer, solution; split train (its dataset card).
        "deepscaler": Preset(
            "agentica-org/DeepScaleR-Preview-Dataset", {"problem": "problem", "answer": "answer"}, solution="solution"
        ),
        # Configurations main and socratic, splits train and test. Columns question, answer: a solution whose last line
        # is `#### ` and the number, with thousands separators (its dataset card; lm-evaluation-harness, tasks/gsm8k).
        "gsm8k": Preset(
            "openai/gsm8k",
            {"problem": "question", "answer": "answer"},
            evaluation_split="test",
            configuration="main",
            answer=_after_hashes,
            solution="answer",
        ),
        # MATH: columns problem, level ("Level 3"), type, solution (worked, its final answer in `\boxed{}`); splits
        # train and test (as public training and evaluation code reads it).
        "math": Preset(
            "DigitalLearningGmbH/MATH-lighteval",
            {"problem": "problem", "answer": "solution", "level": "level"},
            evaluation_split="test",
            answer=_only_boxed,
            solution="solution",
        ),
        # Columns problem, solution, answer, subject, level (a number), unique_id; split test only (its dataset card).
        "math500": Preset(
            "HuggingFaceH4/MATH-500",
            {"problem": "problem", "answer": "answer", "uid": "unique_id", "level": "level"},
            split="test",
        ),
        # Columns problem, solution, answer (or proof, notfound), problem_type, question_type, problem_is_valid and
        # solution_is_valid (Yes, No, Incomplete), source, synthetic; split train (its dataset card; NeMo-RL keeps the
        # same rows).
        "numinamath": Preset(
            "AI-MO/NuminaMath-1.5",
            {"problem": "problem", "answer": "answer"},
            only=MappingProxyType({"problem_is_valid": "Yes", "solution_is_valid": "Yes"}),
            solution="solution",
        ),
        # Columns id (a number), problem, solution, answer, url, year; split train (dataset_info in its card).
        "aime24": Preset("HuggingFaceH4/aime_2024", {"problem": "problem", "answer": "answer", "uid": "id"}),
        # Columns id, problem, solution, url; split test. The solution is only `\boxed{204}` (as HELM's AIMEScenario
        # and others read it).
        "aime24-math-ai": Preset(
            "math-ai/aime24",
            {"problem": "problem", "answer": "solution", "uid": "id"},
            split="test",
            answer=_boxed,
        ),
        # Columns problem, answer, id, all text; split test (dataset_info in its card). Not every answer is a bare
        # number: some carry a degree sign.
        "aime25": Preset("math-ai/aime25", {"problem": "problem", "answer": "answer", "uid": "id"}, split="test"),
        # Columns id, question, answer (a float: 27.0), url; split test (the test.jsonl in Qwen2.5-Math's
        # evaluation/data/amc23, which was uploaded there).
        "amc23": Preset(
            "math-ai/amc23",
            {"problem": "question", "answer": "answer", "uid": "id"},
            split="test",
            answer=_whole_number,
            instead=_PROBLEM,
        ),
        # Columns question, answer; split test (as public evaluation code reads it). Qwen2.5-Math's test.jsonl has
        # problem, solution (worked, its final answer in `\\boxed{}`), type, idx.
        "minerva": Preset(
            "math-ai/minervamath",
            {"problem": "question", "answer": "answer"},
            split="test",
            answer=_boxed,
            instead=MappingProxyType({"problem": ("problem",), "answer": ("solution",)}),
        ),
        # Columns ID, Body (the story), Question, Equation, Answer (text or a float: 145.0), Type; splits train and test
        # (its repository; Qwen2.5-Math's test.jsonl has the same names). Evaluation suites join the first two.
        "svamp": Preset(
            "ChilleD/SVAMP",
            {"problem": "Question", "answer": "Answer", "uid": "ID"},
            evaluation_split="test",
            answer=_whole_number,
            pose=questions.svamp,
            solution="solution",
        ),
        # Columns id, question, chain, result, equation, expression (the equation, solved); splits train, validation and
        # test (its dataset card). Qwen2.5-Math's test.jsonl has input, target (a float: 43.0), type, idx; the authors'
        # JSON files have sQuestion and lSolutions (a list); MWPToolkit's original_text and ans.
        "mawps": Preset(
            "MU-NLPC/Calc-mawps",
            {"problem": "question", "answer": "result"},
            evaluation_split="test",
            answer=_whole_number,
            instead=MappingProxyType(
                {
                    "problem": ("input", "sQuestion", "original_text", "problem", "Question"),
                    "answer": ("target", "lSolutions", "ans", "answer", "Answer"),
                }
            ),
            pose=questions.mawps,
            solution="solution",
        ),
        # Columns question, final_answer (a list of texts), solution (a list), is_multiple_answer, unit, answer_type,
        # error (the tolerance of a number, not used here), subfield, subject, modality, difficulty, language;
        # split test (as public evaluation code reads it).
        "olympiadbench": Preset(
            "math-ai/olympiadbench",
            {"problem": "question", "answer": "final_answer", "level": "difficulty"},
            split="test",
            answer=_join_answers,
            only=MappingProxyType({"modality": "Text-only"}),
        ),
        # The same columns, and id, context (text before the question, or null), image_1 and so on; split train.
        # OE_TO_maths_en_COMP: open-ended, text-only, mathematics, English, competition (OpenBMB/OlympiadBench, README;
        # evalscope's documentation shows a row).
        "olympiadbench-full": Preset(
            "Hothan/OlympiadBench",
            {"problem": "question", "answer": "final_answer", "uid": "id", "level": "difficulty"},
            configuration="OE_TO_maths_en_COMP",
            answer=_join_answers,
            context="context",
            only=MappingProxyType({"modality": "Text-only"}),
        ),
        # Columns Question, Correct Answer, Incorrect Answer 1 to 3, Record ID, High-level domain, Subdomain and many
        # more; configurations gpqa_main, gpqa_diamond, gpqa_extended; split train; gated (its dataset card;
        # simple-evals reads the same columns from a CSV file). For `r3env/Choice-v0`.
        "gpqa": Preset(
            "Idavidrein/gpqa",
            {"problem": "Question", "answer": "answer", "uid": "Record ID", "level": "High-level domain"},
            configuration="gpqa_diamond",
            pose=questions.gpqa,
        ),
        # Columns question_id (a number), question, options (a list of up to ten), answer (a letter), answer_index,
        # cot_content, category, src; splits test and validation (its dataset card). For `r3env/Choice-v0`.
        "mmlu-pro": Preset(
            "TIGER-Lab/MMLU-Pro",
            {"problem": "question", "answer": "answer", "uid": "question_id", "level": "category"},
            split="test",
            pose=questions.mmlu_pro,
        ),
        # Columns key (a number), prompt, instruction_id_list (a list), kwargs (a list of objects with null where an
        # instruction does not take one); split train (its dataset card). For `r3env/Function-v0`, without answers.
        "ifeval": Preset("google/IFEval", {"problem": "prompt", "uid": "key"}),
        # The same columns; split train, its only one (its dataset card).
        "ifbench": Preset("allenai/IFBench_test", {"problem": "prompt", "uid": "key"}),
    }
)

# Names that evaluation suites have for the same data sets.
ALIASES = MappingProxyType({"minerva_math": "minerva", "olympiad_bench": "olympiadbench", "math-500": "math500"})
_BY_HUB_ID = {preset.hub_id.lower(): preset for preset in PRESETS.values()}


def find_preset(hub_id: str) -> Preset | None:
    """Return the preset of a Hub data set, or None; like the Hub, it takes upper and lower case for the same."""
    return _BY_HUB_ID.get(hub_id.lower())
