"""A base of a task: supervised learning on answers, with a checkpoint where its pass@1 is that of a difficulty."""

import copy
import functools
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from algorithms.utils.files import write_json
from benchmarks.suite.protocol import Difficulty, Filter, Recipe, Skill
from benchmarks.suite.tasks import (
    DEVELOPMENT_SEED,
    HELD_OUT_SEED,
    SUPERVISED_SEED,
    TRAINING_SEED,
    Problems,
    plain,
    problems,
    tokenizer_of,
)
from r3env.assets.arithmetic import REFLECTION_GUIDANCE
from r3env.assets.build import LEARNING_RATE, WARM_UP, adamw, learn, new_model
from r3env.assets.lessons import Example, fill_rows
from r3env.assets.report import sample
from r3env.chat import first_turn, next_turn
from r3env.envs.reasoning_gym import extract_tagged_answer
from r3env.envs.reasoning_gym_scoring import may_be_scored

RESPONSE_LIMIT = 40
ROWS, ROW_TOKENS = 12, 256
# Problems that a base is asked for its own wrong answers.
FAILURES = 128
# Pass@1 is at least the probability of the reference answers. Answers are sampled once that is this part of the least
# pass@1 that matters.
SAMPLED_FROM = 0.25
SCORED_ROWS = 32


@dataclass(frozen=True)
class Spec:
    """Which base.

    Args:
        task: of reasoning-gym.
        skill: whether second turns are taught, on the base's own sampled failures.
        replicate: another one has other weights to begin with, and other examples.
    """

    task: str
    skill: Skill
    replicate: int

    @property
    def name(self) -> str:
        """The folder's name."""
        return f"{self.task}-{self.skill}-{self.replicate}"

    @property
    def label(self) -> str:
        """What a command and the protocol call it."""
        return f"{self.task}:{self.skill}:{self.replicate}"

    @property
    def seed(self) -> int:
        """The seed of weights and examples; a replicate of the other skill starts with other weights, too."""
        return 2 * self.replicate + (self.skill == "own_failures")


@dataclass
class Made:
    """The result of making a base.

    Args:
        curve: (supervised step, pass@1 on the development problems) of each measurement; where no answers were sampled
            the probability of the reference answers.
        taken: supervised step of each difficulty's checkpoint; one that no measurement fell into is missing.
    """

    curve: list[tuple[int, float]] = field(default_factory=list)
    taken: dict[Difficulty, int] = field(default_factory=dict)

    @property
    def best(self) -> float:
        """The highest pass@1 that was measured."""
        return max((accuracy for _, accuracy in self.curve), default=0.0)


def make(
    spec: Spec,
    recipe: Recipe,
    limits: Filter,
    folder: Path,
    *,
    wanted: Sequence[Difficulty],
    gives_up: bool = False,
) -> Made:
    """Make a base, with a model folder for each difficulty that it passes through; or read what was made.

    It learns until it has shown that it learns the task, above all difficulties. Where pass@1 jumps over one between
    two measurements, the steps between them are made again, and each is measured.

    Args:
        spec: which.
        recipe: how.
        limits: which problems are kept from it.
        folder: gets `DIFFICULTY/` and `base.json`.
        wanted: difficulties.
        gives_up: whether to end early with a task that looks hopeless. Second turns slow a base down.
    """
    file = folder / "base.json"
    if file.is_file():
        stored = json.loads(file.read_text(encoding="utf-8"))
        return Made([(step, accuracy) for step, accuracy in stored["curve"]], stored["taken"])
    torch.manual_seed(spec.seed)
    pupil = Pupil(spec, limits)
    made, learner, started = Made(), Learner(pupil), time.monotonic()
    every = recipe.interval
    learner.keep()
    while learner.step < recipe.steps:
        learner.learn(recipe)
        missing = {one: recipe.bands[one] for one in wanted if one not in made.taken}
        if learner.step % every:
            continue
        accuracy = pupil.measure(recipe, [low for low, _ in missing.values()])
        last = made.curve[-1][1] if made.curve else 0.0
        if every > 1 and any(last < low and high < accuracy for low, high in missing.values()):
            learner.go_back()
            every = 1
            continue
        made.curve.append((learner.step, accuracy))
        learner.keep()
        for difficulty, (low, high) in missing.items():
            if low <= accuracy <= high:
                made.taken[difficulty] = learner.step
                pupil.save(folder / difficulty)
                every = recipe.interval
        print(
            f"{spec.name} {learner.step}/{recipe.steps}  {accuracy:.3f}  {time.monotonic() - started:.0f} s", flush=True
        )
        hopeless = learner.step >= recipe.hopeless[0] and made.best < recipe.hopeless[1]
        if made.best >= recipe.learnable or (gives_up and hopeless):
            break
    folder.mkdir(parents=True, exist_ok=True)
    write_json(file, {"curve": made.curve, "taken": made.taken})
    return made


class Learner:
    """Supervised learning that can go back to where it was last kept.

    Args:
        step: made so far.
    """

    def __init__(self, pupil: "Pupil") -> None:
        self.pupil, self.optimizer, self.step = pupil, adamw(pupil.model), 0

    def learn(self, recipe: Recipe) -> None:
        """Take one step."""
        pupil = self.pupil
        if pupil.learns_from_failures and self.step % recipe.interval == 0 and self.step:
            pupil.fail(recipe.interval)
        self.step += 1
        share = recipe.second_turns if pupil.failures else 0.0
        batch = fill_rows(functools.partial(pupil.example, share), ROWS, ROW_TOKENS)
        learn(pupil.model, self.optimizer, batch, LEARNING_RATE * min(1.0, self.step / WARM_UP))

    def keep(self) -> None:
        """Remember weights and optimizer."""
        self._kept = copy.deepcopy((self.step, self.pupil.model.state_dict(), self.optimizer.state_dict()))

    def go_back(self) -> None:
        """Return to what was kept; examples go on with new ones."""
        self.step, weights, state = copy.deepcopy(self._kept)
        self.pupil.model.load_state_dict(weights)
        self.optimizer.load_state_dict(state)


class Pupil:
    """A model, what it is taught, and what it gets wrong.

    Args:
        failures: (prompt, its own wrong response, the right answer), the newest; empty without that skill.
    """

    def __init__(self, spec: Spec, limits: Filter) -> None:
        self.task, self.rng = plain(spec.task), random.Random(spec.seed)
        self.learns_from_failures = spec.skill == "own_failures"
        training = problems(spec.task, TRAINING_SEED, limits.training)
        self.tokenizer = tokenizer_of(training)
        self.model = new_model(self.tokenizer)
        held_out = problems(spec.task, HELD_OUT_SEED, limits.held_out)
        self.development = problems(spec.task, DEVELOPMENT_SEED, limits.held_out * 4)
        self.kept_from_it = {
            entry["question"] for drawn in (training, held_out, self.development) for entry in drawn.entries
        }
        self.pool = problems(spec.task, SUPERVISED_SEED + spec.seed, 1).dataset
        self.failures: list[tuple[list[int], list[int], str]] = []
        self.drawn = 0

    def example(self, second_turns: float) -> Example:
        """Draw the next example: an answer, or one after an own failed attempt."""
        if self.rng.random() < second_turns:
            prompt, attempt, answer = self.rng.choice(self.failures)
            return Example(
                prompt + attempt + next_turn(self.tokenizer, attempt, REFLECTION_GUIDANCE), self._answered(answer)
            )
        entry = self._draw()
        return Example(self._prompt(entry), self._answered(entry["answer"]))

    def fail(self, count: int) -> None:
        """Sample answers to fresh problems, and keep the incorrect ones."""
        entries = [self._draw() for _ in range(max(count, FAILURES))]
        prompts, responses = self._respond(entries)
        self.failures = [
            (prompt, response, entry["answer"])
            for entry, prompt, response in zip(entries, prompts, responses, strict=True)
            if not self._is_right(self.development, entry, response)
        ]

    def measure(self, recipe: Recipe, lows: Sequence[float]) -> float:
        """Return pass@1 on the development problems, or a bound from below where that cannot matter yet.

        Args:
            recipe: of the base.
            lows: the least pass@1 of each difficulty that is still missing.
        """
        least = min(recipe.hopeless[1], *lows) if lows else recipe.hopeless[1]
        bound = self.reference_probability()
        return bound if bound < SAMPLED_FROM * least else self.accuracy(recipe.problems)

    @torch.inference_mode()
    def reference_probability(self) -> float:
        """Return the mean probability of the development problems' reference answers, at temperature 1."""
        pairs = [(self._prompt(entry), self._answered(entry["answer"])) for entry in self.development.entries]
        pairs.sort(key=lambda pair: len(pair[0]) + len(pair[1]))
        found: list[float] = []
        for start in range(0, len(pairs), SCORED_ROWS):
            rows = pairs[start : start + SCORED_ROWS]
            whole = [torch.tensor(prompt + answer) for prompt, answer in rows]
            tokens = torch.nn.utils.rnn.pad_sequence(whole, batch_first=True)  # causal: padding behind changes nothing
            hidden = self.model.get_decoder()(input_ids=tokens).last_hidden_state
            for (prompt, answer), states, row in zip(rows, hidden, whole, strict=True):
                logits = self.model.get_output_embeddings()(states[len(prompt) - 1 : len(row) - 1])
                chosen = logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None])
                found.append(float(chosen.sum().exp()))
        return sum(found) / len(found)

    def accuracy(self, count: int) -> float:
        """Return pass@1 on development problems, one answer each."""
        entries = [self.development.entries[index % len(self.development.entries)] for index in range(count)]
        _, responses = self._respond(entries)
        right = [self._is_right(self.development, *pair) for pair in zip(entries, responses, strict=True)]
        return sum(right) / len(right)

    def save(self, folder: Path) -> None:
        """Write the model folder."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def _respond(self, entries: Sequence[dict[str, Any]]) -> tuple[list[list[int]], list[list[int]]]:
        prompts = [self._prompt(entry) for entry in entries]
        self.model.eval()
        responses = sample(self.model, self.tokenizer, prompts, RESPONSE_LIMIT)
        self.model.train()
        return prompts, responses

    def _is_right(self, drawn: Problems, entry: dict[str, Any], response: list[int]) -> bool:
        text = str(self.tokenizer.decode(response, skip_special_tokens=True))
        answer = extract_tagged_answer(text) if response[-1] == self.tokenizer.eos_token_id else None
        if answer is None or not may_be_scored(self.task, entry, answer):
            return False
        try:
            return drawn.score(answer, entry) >= 1
        except Exception:  # some scorers raise over an answer that they cannot read
            return False

    def _draw(self) -> dict[str, Any]:
        """Draw the next problem that is not in a test."""
        while True:
            self.drawn += 1
            entry: dict[str, Any] = self.pool[self.drawn]
            if entry["question"] not in self.kept_from_it:
                return entry

    def _prompt(self, entry: dict[str, Any]) -> list[int]:
        return first_turn(self.tokenizer, [{"role": "user", "content": entry["question"]}])

    def _answered(self, answer: str) -> list[int]:
        tokens = self.tokenizer.encode(f"<answer>{answer}</answer>", add_special_tokens=False)
        return [*tokens, self.tokenizer.eos_token_id]
