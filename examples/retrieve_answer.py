"""A task of several turns: search a small corpus, answer from the results, and answer again if incorrect.

python -m algorithms.grpo environment.id=examples.retrieve_answer:RetrieveAnswer-v0 environment.data=train \
    evaluation.data=heldout 'training.mechanisms=[examples.retrieve_answer:ProcessSchedule]' process_schedule.steps=500

The reward follows TIRESRAG-R1 (arXiv 2507.22716): R_answer + w · (0.6 R_think + 0.3 R_retrieve + 0.3 R_reflect), where
w(t) = 1 / (1 + exp((t - 0.9 T) / 10)) fades the process out at the end of training. There judges score thinking and
retrieval; here code does, and that is ours. Their penalty and weights of advantages are left out.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import gymnasium

from algorithms.grpo.mechanism import Group, Mechanism, Settings, StepBatch, setting
from r3env.core import Query, Reason, Verdict, VerifiableEnv

TOWNS = "Arlen Brede Corvo Dunmer Elsk Fenby Garth Holm Ivrea Jessen Kolby Lund Morra Nessa Orby Pellow".split()
NAMES = "Ana Bo Cleo Dag Edda Finn Gro Hugo Ines Jon Kaja Leo Mina Nils Oda Per".split()
THINGS = "bees pigeons clocks maps stamps kites tulips drums chess coins boats masks bells stones rugs lamps".split()
FACTS = [(town, f"{name} {town}sson", thing) for town, name, thing in zip(TOWNS, NAMES, reversed(THINGS), strict=True)]
CORPUS = [text for town, who, what in FACTS for text in (f"The mayor of {town} is {who}.", f"{who} collects {what}.")]
SPLITS = {"train": FACTS[:11], "heldout": FACTS[11:]}
INSTRUCTION = (
    "Think inside <think> </think>. Then either search with <search>words</search> and read what is found, or give "
    "<answer>one word</answer>."
)
NO_ACTION = "There is neither <search> nor <answer> in your turn."
REFLECT = "That is not the answer. Compare it with what you found; search again or answer again."
THINK, RETRIEVE, REFLECT_BONUS = 0.6, 0.3, 0.3


class RetrieveAnswer(VerifiableEnv):
    """Asks questions of two hops: first find the mayor's name, and then what that person collects.

    `data` is `train` or `heldout`, over the same corpus. A turn of the policy's ends with its search or its answer;
    `results` chunks come back for a search. The process is paid at the end of the episode.
    """

    def __init__(self, data: str = "train", *, max_turns: int = 5, results: int = 2, **arguments: Any) -> None:
        super().__init__(max_turns=max_turns, **{"instruction": INSTRUCTION} | arguments)
        if data not in SPLITS:
            raise ValueError(f"data must be train or heldout, it is {data!r}")
        self.facts, self.results = SPLITS[data], results
        self.found: set[str] = set()
        self.thoughts: list[bool] = []
        self.answers = 0

    def load_queries(self) -> list[Query]:
        """Make one question per town; `info` has the chunks that answer it."""
        return [
            Query(town, f"What does the mayor of {town} collect?", what, info={"chunks": CORPUS[2 * n : 2 * n + 2]})
            for n, (town, _, what) in enumerate(FACTS)
            if (town, _, what) in self.facts
        ]

    def verify(self, query: Query, response: str) -> Verdict:
        """Judge the answer; a turn without one is not judged."""
        answer = tagged(response, "answer")
        if answer is None:
            return Verdict(False, Reason.NO_ANSWER)
        correct = answer.strip(" .").lower() == query.answer
        return Verdict(correct, Reason.EQUAL if correct else Reason.DIFFERENT)

    def feedback(self, query: Query, response: str, verdict: Verdict) -> str:
        """Return the search results, or what to do about an incorrect answer."""
        if (words := tagged(response, "search")) is not None:
            chunks = search(words, CORPUS, self.results)
            self.found.update(chunks)
            return "\n".join(chunks) or "Nothing was found."
        return REFLECT if verdict.reason == Reason.DIFFERENT else NO_ACTION

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin without search results."""
        self.found, self.thoughts, self.answers = set(), [], 0
        text, info = super().reset(seed=seed, options=options)
        return text, {**info, "state": self.evidence()}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Judge a turn; the last one is also rewarded for the process."""
        observation, reward, terminated, truncated, info = super().step(action)
        self.thoughts.append(bool((tagged(action, "think") or "").strip()))
        self.answers += tagged(action, "answer") is not None
        if terminated:
            reward += self.process(bool(info["correct"]))
        return observation, reward, terminated, truncated, {**info, "state": self.evidence()}

    def process(self, correct: bool) -> float:
        """Reward turns that begin with a thought, all chunks of the question, and a corrected answer."""
        reflected = correct and self.answers > 1
        think = sum(self.thoughts) / len(self.thoughts)
        return THINK * think + RETRIEVE * (self.evidence() == "found") + REFLECT_BONUS * reflected

    def evidence(self) -> str:
        """Name the state of an episode by whether all chunks of its question were found."""
        needed = self._current.info["chunks"] if self._current else [""]
        return "found" if self.found.issuperset(needed) else "missing"

    def reference_response(self, query: Query) -> str:
        """Return the answer alone."""
        return f"<answer>{query.answer}</answer>"


class ScheduleSettings(Settings):
    """Fade the reward for the process out."""

    enabled: bool = setting(True, "Whether to fade it.")
    steps: int = setting(1000, "Training steps of the run (T).", ge=1)
    share: float = setting(0.9, "Share of them after which the process counts half.", ge=0)
    width: float = setting(10.0, "Steps in which its weight falls from a half to about a quarter.", gt=0)


class ProcessSchedule(Mechanism):
    """Weighs the reward beyond an episode's answer by w(t) = 1 / (1 + exp((t - share · T) / width))."""

    section = "process_schedule"
    settings_class = ScheduleSettings
    tags = {"process_schedule/weight": 1.0, "process_schedule/process": 0.0}
    settings: ScheduleSettings

    def weight(self, step: int) -> float:
        """Return w of a step."""
        return 1 / (1 + math.exp(min(700.0, (step - self.settings.share * self.settings.steps) / self.settings.width)))

    def rewards(self, group: Group) -> None:
        """Subtract the faded part from each reward; an answer alone gets 1 or 0."""
        weight = self.metrics["process_schedule/weight"] = self.weight(self.services.step)
        for sample in group.fresh:
            paid, whole = sample.rollout.reward, sample.reward if sample.shaped_reward is None else sample.shaped_reward
            process = (paid - float(sample.rollout.correct)) / paid if paid else 0.0  # its share
            sample.shaped_reward = whole - (1 - weight) * process * (whole - sample.length_penalty)

    def update_history(self, batch: StepBatch) -> None:
        """Report the mean reward for the process, before its weight."""
        paid = [sample.rollout.reward - float(sample.rollout.correct) for sample in batch.fresh]
        self.metrics["process_schedule/process"] = sum(paid) / max(1, len(paid))


def tagged(response: str, tag: str) -> str | None:
    """Return the text of the last `<tag> </tag>` of a response; None if there is none."""
    found = re.findall(f"<{tag}>(.*?)</{tag}>", response, re.DOTALL)
    return found[-1] if found else None


def search(words: str, corpus: Sequence[str], count: int, k1: float = 1.2, b: float = 0.75) -> list[str]:
    """Return the best chunks, best first, by BM25; those without a common word are left out."""
    documents = [Counter(re.findall(r"\w+", chunk.lower())) for chunk in corpus]
    mean = sum(map(Counter.total, documents)) / len(documents)
    scores = [0.0] * len(corpus)
    for word in set(re.findall(r"\w+", words.lower())):
        holding = sum(word in document for document in documents)
        rarity = math.log(1 + (len(corpus) - holding + 0.5) / (holding + 0.5))
        for place, document in enumerate(documents):
            often = document[word]
            scores[place] += rarity * often * (k1 + 1) / (often + k1 * (1 - b + b * document.total() / mean))
    ranked = sorted(range(len(corpus)), key=lambda place: -scores[place])
    return [corpus[place] for place in ranked[:count] if scores[place] > 0]


gymnasium.register("RetrieveAnswer-v0", RetrieveAnswer)
