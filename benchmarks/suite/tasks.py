"""The suite's tasks: a mechanical filter over reasoning-gym, so that nobody chooses what a method is tested on."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from algorithms.utils.files import write_text
from benchmarks.suite.protocol import Filter

# Which problems are drawn for what; a task's held-out problems are the same for every arm and base.
TRAINING_SEED, HELD_OUT_SEED, DEVELOPMENT_SEED, SUPERVISED_SEED = 1, 1_000_000, 2_000_000, 3_000_000


@dataclass(frozen=True)
class Screened:
    """What the filter found of a task.

    Args:
        name: reasoning-gym's.
        reason: why it is left out; None: it is in.
        prompt: characters of its longest prompt that was drawn.
        answer: characters of its longest answer.
        guess: share of its most frequent answer.
    """

    name: str
    reason: str | None
    prompt: int | None = None
    answer: int | None = None
    guess: float | None = None


def names() -> list[str]:
    """All of reasoning-gym's tasks, in the order of the SHA-256 of their names."""
    from reasoning_gym.factory import DATASETS

    return sorted(DATASETS, key=lambda name: hashlib.sha256(name.encode()).hexdigest())


def screen(name: str, limits: Filter) -> Screened:
    """Draw problems of a task with its own defaults, and measure them.

    A first look at a few spares generating hundreds of those whose prompts are pages long.
    """
    try:
        few = problems(name, TRAINING_SEED, 8)
        if reason := _too_long(few, limits):
            return Screened(name, reason, *_longest(few))
        training, held_out = (
            problems(name, TRAINING_SEED, limits.training),
            problems(name, HELD_OUT_SEED, limits.held_out),
        )
        return _measured(name, training, held_out, limits)
    except Exception as error:  # a generator that needs more than its defaults, or fails on some seed
        return Screened(name, f"cannot be generated: {type(error).__name__}")


def _measured(name: str, training: "Problems", held_out: "Problems", limits: Filter) -> Screened:
    both = [*training.entries, *held_out.entries]
    answers = Counter(entry["answer"] for entry in both)
    facts = (*_longest(training, held_out), answers.most_common(1)[0][1] / len(both))
    questions = {entry["question"] for entry in training.entries}
    repeated = sum(entry["question"] in questions for entry in held_out.entries)
    reason = _too_long(training, limits) or _too_long(held_out, limits)
    if not reason and facts[2] > limits.guess_share:
        reason = f"can be guessed: one answer is right for {facts[2]:.0%}"
    if not reason and (repeated or len(questions) < len(training.entries)):
        reason = "too few different problems"
    return Screened(name, reason or _unsound(training), *facts)


def _unsound(drawn: "Problems") -> str | None:
    """Whether the scorer is no judge: it rejects the reference, accepts another problem's answer, or wavers."""
    for entry, other in zip(drawn.entries, [*drawn.entries[1:], drawn.entries[0]], strict=True):
        if drawn.score(entry["answer"], entry) < 1 or drawn.score(entry["answer"], entry) < 1:
            return "its scorer rejects its own answer"
        if other["answer"] != entry["answer"] and drawn.score(other["answer"], entry) >= 1:
            return "its scorer accepts another problem's answer"
    return None


def _too_long(drawn: "Problems", limits: Filter) -> str | None:
    prompt, answer = _longest(drawn)
    if prompt > limits.prompt_characters:
        return f"prompt of more than {limits.prompt_characters} characters"
    return f"answer of more than {limits.answer_characters} characters" if answer > limits.answer_characters else None


def _longest(*drawn: "Problems") -> tuple[int, int]:
    entries = [entry for one in drawn for entry in one.entries]
    return max(len(entry["question"]) for entry in entries), max(len(entry["answer"]) for entry in entries)


@dataclass(frozen=True)
class Problems:
    """Generated problems and the task's own scorer.

    Args:
        dataset: reasoning-gym's.
        entries: each with `question` and `answer`, a text.
    """

    dataset: Any
    entries: Sequence[dict[str, Any]]

    def score(self, answer: str, entry: dict[str, Any]) -> float:
        """Return the scorer's verdict on an answer, from 0 to 1."""
        return float(self.dataset.score_answer(answer=answer, entry=entry))


def problems(name: str, seed: int, size: int) -> Problems:
    """Generate problems of a task as `r3env/ReasoningGym-v0` does.

    Raises:
        Exception: whatever the task's generator raises; an answer that is no text is a ValueError.
    """
    import reasoning_gym

    dataset = reasoning_gym.create_dataset(name, seed=seed, size=size)
    entries = [dataset[index] for index in range(size)]
    if not all(isinstance(entry["answer"], str) and entry["answer"] for entry in entries):
        raise ValueError(f"{name}: a problem has no answer")
    return Problems(dataset, entries)


def write_screened(screened: Iterable[Screened], file: Path) -> None:
    """Write one line a task, with every exclusion and its reason."""
    write_text(file, "".join(json.dumps(asdict(one)) + "\n" for one in screened))


def read_screened(file: Path) -> list[Screened]:
    """Read what `write_screened` wrote; nothing before it has."""
    if not file.is_file():
        return []
    return [Screened(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
