"""Rows of formats that are not ours: which columns hold problem and answer, as trainers and data sets name them.

Each format is written down where its preset or its row in the tables below is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from r3env.data import questions
from r3env.data.cells import find_cell, is_conversation
from r3env.data.json_rows import Row
from r3env.data.presets import PRESETS, Preset

# In the order in which they are tried, whatever their case. verl: prompt, reward_model. TRL: prompt, solution.
# OpenRLHF: input, label. slime: prompt, label. AReaL: prompt, solutions. NeMo-RL: problem, expected_answer. prime-rl:
# question, prompt, verification_info. Open-Reasoner-Zero: a list of two turns. OLMo's RLVR: messages, ground_truth.
PROBLEM = (
    "problem",
    "question",
    "prompt",
    "messages",
    "conversations",
    "context_messages",
    "input",
    "query",
    "instruction",
    "original_question",
    "content",
    "0.value",
    "responses_create_params.input",
    "sQuestion",
    "original_text",
)
ANSWER = (
    "answer",
    "reward_model.ground_truth",
    "ground_truth",
    "final_answer",
    "expected_answer",
    "gt_answer",
    "final_ans",
    "correct_answer",
    "reference_answer",
    "verification_info.ground_truth",
    "1.ground_truth.value",
    "label",
    "solutions",
    "target",
    "lSolutions",
    "ans",
    "golden",
    "solution",
)
SOLUTION = "solution"  # worked, as a rule: its box is the answer
_CONVERSATIONS = ("prompt", "messages", "conversations", "context_messages", "input")

# By the columns that make it sure: data sets whose problem stands in several columns.
_POSED: tuple[tuple[str, frozenset[str], Preset], ...] = (
    ("svamp", frozenset(("Body", "Question", "Answer")), PRESETS["svamp"]),
    ("gpqa", frozenset(("Question", "Correct Answer", "Incorrect Answer 1")), PRESETS["gpqa"]),
    ("mmlu-pro", frozenset(("question", "options", "answer", "answer_index")), PRESETS["mmlu-pro"]),
    (
        "ASDiv",
        frozenset(("body", "question", "answer")),
        Preset("", {"problem": "question", "answer": "answer"}, pose=questions.asdiv),
    ),
    (
        "TabMWP",
        frozenset(("question", "table", "answer")),
        Preset("", {"problem": "question", "answer": "answer"}, pose=questions.tabmwp),
    ),
    ("OlympiadBench", frozenset(("question", "context", "final_answer")), PRESETS["olympiadbench-full"]),
    (
        "MMLU",
        frozenset(("question", "choices", "answer")),
        Preset("", {"problem": "question", "answer": "answer"}, pose=questions.mmlu),
    ),
    *(
        (
            "a question with options in columns",
            frozenset((question, "A", "B", answer)),
            Preset("", {"problem": question, "answer": answer}, pose=questions.in_columns),
        )
        for question, answer in (("question", "answer"), ("Question", "Answer"))
    ),
    (
        "a question with options",
        frozenset(("question", "options", "answer")),
        Preset("", {"problem": "question", "answer": "answer"}, pose=questions.with_options),
    ),
    (
        "questions with a context",
        frozenset(("question", "context", "answer")),
        Preset("", {"problem": "question", "answer": "answer"}, pose=questions.in_context),
    ),
    (
        "Alpaca",
        frozenset(("instruction", "input", "output")),
        Preset("", {"problem": "instruction", "answer": "output"}, pose=questions.alpaca),
    ),
    (
        "BoolQ",
        frozenset(("question", "passage", "answer")),
        Preset("", {"problem": "question", "answer": "answer"}, pose=questions.boolq),
    ),
    (
        "MGSM",
        frozenset(("question", "answer", "answer_number")),
        Preset("", {"problem": "question", "answer": "answer_number"}),
    ),
    (
        "AQuA",
        frozenset(("question", "options", "correct")),
        Preset("", {"problem": "question", "answer": "correct"}, pose=questions.aqua),
    ),
    (
        "ARC",
        frozenset(("question", "choices", "answerKey")),
        Preset("", {"problem": "question", "answer": "answerKey"}, pose=questions.arc),
    ),
)


@dataclass(frozen=True)
class Format:
    """How the rows of a data set are read.

    Args:
        columns: Their column for each field of ours.
        preset: Of a data set whose problem stands in several columns.
        name: What was recognized, for people; empty where the columns are ours, or were named.
        guessed: Fields of ours whose column nobody named.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    preset: Preset | None = None
    name: str = ""
    guessed: frozenset[str] = frozenset()


def recognize(row: Row, columns: Mapping[str, str], preset: Preset | None) -> Format:
    """Determine how rows like this one are read: what was named goes first, then our own names, then known ones.

    Args:
        row: The first of the data set.
        columns: What the user named.
        preset: What the user named; its columns are the only ones that are tried.
    """
    if preset is not None:
        return Format(_of_preset(row, preset) | dict(columns), preset)
    if not columns.keys() & {"problem", "answer"}:
        for name, signature, posed in _POSED:
            if signature <= row.keys() and not ({"problem", "prompt"} & row.keys()):
                return Format({**posed.columns, **columns}, posed, f"read as {name}")
    found = dict(columns)
    for name, candidates in (("problem", _problems(row)), ("answer", ANSWER)):
        known = name not in found and next(filter(None, (_spelled(row, each) for each in candidates)), None)
        if known:
            found[name] = known
    others = [name for name in ("problem", "answer") if found.get(name, name) != columns.get(name, name)]
    told = [f"{name} from {found[name]!r}" for name in others]
    guessed = frozenset(name for name in found if name not in columns)
    return Format(found, None, f"read {' and '.join(told)}" if told else "", guessed)


def _of_preset(row: Row, preset: Preset) -> dict[str, str]:
    columns = dict(preset.columns)
    for name, others in preset.instead.items():
        if columns[name] not in row:
            columns[name] = next((other for other in others if other in row), columns[name])
    return columns


def _problems(row: Row) -> Sequence[str]:
    """Return the candidates; a conversation is what its trainer would send, and goes before a bare question."""
    conversations = [name for name in _CONVERSATIONS if is_conversation(row.get(name))]
    return ("problem", *conversations[:1], *PROBLEM) if "messages" not in conversations[:1] else PROBLEM


def _spelled(row: Row, candidate: str) -> str | None:
    """Return the candidate as this row spells it, if it has it; a flattened row has the dots in its names."""
    if candidate in row:
        return candidate
    head, dot, rest = candidate.partition(".")
    column = next((name for name in row if name.lower() == head.lower()), None) if head not in row else head
    if column is None:
        return None
    try:
        find_cell(row, column + dot + rest)
    except KeyError:
        return None
    return column + dot + rest
