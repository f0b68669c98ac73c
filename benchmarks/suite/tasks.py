"""The suite's tasks: a mechanical filter over reasoning-gym, so no task is chosen by hand."""

import contextlib
import hashlib
import json
import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import Qwen2Tokenizer

from algorithms.utils.files import write_text
from benchmarks.suite.protocol import Filter
from r3env.assets.arithmetic import REFLECTION_GUIDANCE
from r3env.assets.tokenizer import build_tokenizer
from r3env.envs.reasoning_gym_tasks import Task

# What separates a task's name from a level of its curriculum.
LEVEL = "-level"
# Shortest shared text that becomes a token, and how many at most.
SHARED_CHARACTERS, SHARED_PIECES = 6, 16
# Some generators search, some of them for minutes a problem. CPU seconds: a busy machine changes no verdict.
GENERATION_S = 60
# Which problems are drawn for what; a task's held-out problems are the same for every arm and base.
TRAINING_SEED, HELD_OUT_SEED, DEVELOPMENT_SEED, SUPERVISED_SEED = 1, 1_000_000, 2_000_000, 3_000_000


@dataclass(frozen=True)
class Screened:
    """The filter's finding on a task.

    Args:
        name: reasoning-gym's, with `-levelN` where it is not with its own defaults.
        reason: why it is left out; None: it is in.
        prompt: tokens of its longest prompt that was drawn.
        answer: characters of its longest answer.
        guess: share of its most frequent answer.
    """

    name: str
    reason: str | None
    prompt: int | None = None
    answer: int | None = None
    guess: float | None = None


def names() -> list[str]:
    """Return all of reasoning-gym's tasks, in the order of the SHA-256 of their names."""
    from reasoning_gym.factory import DATASETS

    return sorted(DATASETS, key=lambda name: hashlib.sha256(name.encode()).hexdigest())


def plain(name: str) -> str:
    """Return reasoning-gym's name of a task that may bear a level."""
    return name.partition(LEVEL)[0]


def variants(name: str, limits: Filter) -> list[str]:
    """List the task with its own defaults and at each level that is tried, where it has a curriculum."""
    from reasoning_gym.factory import has_curriculum

    return [name, *(f"{name}{LEVEL}{level}" for level in limits.levels if has_curriculum(name))]


def screen(name: str, limits: Filter) -> Screened:
    """Draw problems of a task, and measure them.

    A first look at a few spares generating hundreds of those whose prompts are pages long.
    """
    try:
        with _no_longer_than(GENERATION_S):
            few = problems(name, TRAINING_SEED, 8)
            if reason := _too_long(few, limits, tokenizer_of(few)):
                return Screened(name, reason)
            training = problems(name, TRAINING_SEED, limits.training)
            return _measured(name, training, problems(name, HELD_OUT_SEED, limits.held_out), limits)
    except Exception as error:  # a generator that needs more than its defaults, or fails on some seed
        return Screened(name, f"cannot be generated: {type(error).__name__}")


@contextlib.contextmanager
def _no_longer_than(seconds: int) -> Iterator[None]:
    """Interrupt the block after its limit in CPU seconds; for a process's main thread."""

    def interrupt(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGPROF, interrupt)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _measured(name: str, training: "Problems", held_out: "Problems", limits: Filter) -> Screened:
    both = Problems(training.dataset, [*training.entries, *held_out.entries])
    answers = Counter(entry["answer"] for entry in both.entries)
    guess = answers.most_common(1)[0][1] / len(both.entries)
    tokenizer = tokenizer_of(training)
    questions = {entry["question"] for entry in training.entries}
    repeated = sum(entry["question"] in questions for entry in held_out.entries)
    reason = _too_long(both, limits, tokenizer)
    if not reason and guess > limits.guess_share:
        reason = f"can be guessed: one answer is right for {guess:.0%}"
    if not reason and (repeated or len(questions) < len(training.entries)):
        reason = "too few different problems"
    return Screened(name, reason or _unsound(training), *_longest(both, tokenizer), guess)


def _unsound(drawn: "Problems") -> str | None:
    """Return why the scorer is unsound: it rejects the reference, accepts another problem's answer, or wavers."""
    for entry, other in zip(drawn.entries, [*drawn.entries[1:], drawn.entries[0]], strict=True):
        if drawn.score(entry["answer"], entry) < 1 or drawn.score(entry["answer"], entry) < 1:
            return "its scorer rejects its own answer"
        if other["answer"] != entry["answer"] and drawn.score(other["answer"], entry) >= 1:
            return "its scorer accepts another problem's answer"
    return None


def _too_long(drawn: "Problems", limits: Filter, tokenizer: Qwen2Tokenizer) -> str | None:
    prompt, answer = _longest(drawn, tokenizer)
    if answer > limits.answer_characters:
        return f"answer of more than {limits.answer_characters} characters"
    return f"prompt of more than {limits.prompt_tokens} tokens" if prompt > limits.prompt_tokens else None


def _longest(drawn: "Problems", tokenizer: Qwen2Tokenizer) -> tuple[int, int]:
    prompts = tokenizer([entry["question"] for entry in drawn.entries], add_special_tokens=False, verbose=False)
    return max(map(len, prompts["input_ids"])), max(len(entry["answer"]) for entry in drawn.entries)


def tokenizer_of(drawn: "Problems") -> Qwen2Tokenizer:
    """Make a task's tokenizer: bytes, and a token for each piece of text that all of its prompts share."""
    pieces = shared([entry["question"] for entry in drawn.entries])
    return build_tokenizer([REFLECTION_GUIDANCE, "<answer>", "</answer>", *pieces])


def shared(texts: Sequence[str]) -> list[str]:
    """Cut the longest piece that all texts have out of them, and again; returns the pieces, the longest first."""
    rests, found = [[text] for text in texts], list[str]()
    while len(found) < SHARED_PIECES:
        piece = max((_longest_shared(part, rests) for part in min(rests, key=_characters)), key=len, default="")
        if len(piece) < SHARED_CHARACTERS:
            break
        found.append(piece)
        rests = [[rest for part in parts for rest in part.split(piece)] for parts in rests]
    return found


def _longest_shared(text: str, rests: Sequence[Sequence[str]]) -> str:
    """Return the longest piece of the text that is in some part of each of the others, or the first of several.

    The start moves on by one at a time, and the end never back: a piece that begins later and is longer ends later.
    """
    start = end = 0
    best = ""
    while end < len(text):
        piece = text[start : end + 1]
        if all(any(piece in part for part in parts) for parts in rests):
            end += 1
            best = max(best, piece, key=len)
        else:
            start += 1
            end = max(end, start + len(best))
    return best


def _characters(parts: Sequence[str]) -> int:
    return sum(map(len, parts))


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

    Args:
        name: reasoning-gym's, or with `-levelN`.
        seed: which.
        size: how many.

    Raises:
        Exception: whatever the task's generator raises; an answer that is no text is a ValueError.
    """
    task, _, level = name.partition(LEVEL)
    dataset = Task(task, seed, size, int(level) if level else None).dataset()
    entries = [dataset[index] for index in range(size)]
    if not all(isinstance(entry["answer"], str) and entry["answer"] for entry in entries):
        raise ValueError(f"{name}: a problem has no answer")
    return Problems(dataset, entries)


def generated(name: str, seed: int, size: int) -> str:
    """Return the same problems as a setting of the environment."""
    task, _, level = name.partition(LEVEL)
    return f"{task}#seed={seed},size={size}" + (f",level={level}" if level else "")


def write_screened(screened: Iterable[Screened], file: Path) -> None:
    """Write one line per task, with every exclusion and its reason."""
    write_text(file, "".join(json.dumps(asdict(one)) + "\n" for one in screened))


def read_screened(file: Path) -> list[Screened]:
    """Read what `write_screened` wrote; empty before the first time."""
    if not file.is_file():
        return []
    return [Screened(**json.loads(line)) for line in file.read_text(encoding="utf-8").splitlines()]
