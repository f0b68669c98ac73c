"""BCPG-NSA: push less on the correct steps of incorrect responses, and stay close to the model of the start."""

import functools
import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from algorithms.config.sections import Text
from algorithms.grpo.mechanism import Group, Mechanism, Sample, Services, Settings, StepBatch, setting
from algorithms.methods.functions import load_named
from algorithms.methods.logprob_gaps import per_token
from algorithms.methods.prefixes import decode
from r3env.core import Query

if TYPE_CHECKING:  # loads Ray, and slow to import
    from transformers import PreTrainedTokenizerBase

    from algorithms.config.base import BaseConfig

Span = tuple[int, int]
_TOKEN = re.compile(r"\d+|[^\s\d]")
_LONGEST_NUMBER = 40  # digits
_FACTORS = ("*", "/", ".")


class BcpgNsaSettings(Settings):
    """Weigh the correct steps of incorrect responses, and penalize the distance from the first model."""

    enabled: bool = setting(True, "Whether to weigh and penalize.")
    steps: Text = setting(
        "algorithms.methods.bcpg_nsa:correct_equations",
        "The function that finds correct steps, `module:function` or `file.py:function`: from a `Query` and a turn's "
        "text it returns the places [start, end) of the characters of correct steps. By default equations of sums.",
    )
    weight: float = setting(
        0.5, "Weight of the advantage on tokens of correct steps in incorrect responses (β).", ge=0, le=1
    )
    tau: float = setting(
        1e-3, "Half of it weighs the squared log-ratio of a response to the model of the start (τ).", ge=0
    )


class BcpgNsa(Mechanism):
    """`A_t = w_t · A - τ · log(π(y|x) / π_ref(y|x))`, with w = β on correct steps of incorrect responses, else 1.

    The second part is the gradient of `-τ/2 (log π/π_ref)²` of a response at the step's start: exact with one optimizer
    step a training step, of first order with more. The preset's advantage A is `r - mean`. Replayed responses keep
    their advantages.

    Source: arXiv 2505.14403, notes on it (β, τ, A, and the squared term). The authors train offline, on steps that a
    judge and a process reward model both call correct; here a function finds the steps, in each step's responses.
    """

    section = "bcpg_nsa"
    settings_class = BcpgNsaSettings
    tags = {"bcpg_nsa/correct_steps": 0.0, "bcpg_nsa/distance": 0.0}
    per_token = True
    uses_reference = True
    settings: BcpgNsaSettings

    def __init__(self, settings: BcpgNsaSettings, services: Services) -> None:
        super().__init__(settings, services)
        self.spans = load_named("bcpg_nsa.steps", settings.steps)
        self.distances: dict[int, float] = {}  # of the step's fresh samples, by their id
        self.weights: dict[int, np.ndarray] = {}

    @classmethod
    def check(cls, settings: BcpgNsaSettings, config: "BaseConfig") -> None:
        """Raise ConfigError where there is no such function."""
        load_named("bcpg_nsa.steps", settings.steps)

    def before_advantages(self, batch: StepBatch) -> None:
        """Find correct steps in the step's incorrect responses, and measure the distances of all."""
        samples = [sample for group in batch.groups for sample in group.trained]
        pairs = [(group.prompt, s) for group in batch.groups for s in group.trained if not s.rollout.correct]
        wrong = [sample for _, sample in pairs]
        masks = [self._correct_tokens(self.services.posed(prompt), sample) for prompt, sample in pairs]
        weight = np.float32(self.settings.weight)
        self.weights = {id(s): np.where(mask, weight, np.float32(1)) for s, mask in zip(wrong, masks, strict=True)}
        if masks:
            self.metrics["bcpg_nsa/correct_steps"] = float(np.concatenate(masks).mean())
        self.distances = {}
        if self.settings.tau and samples:
            self.services.measure(samples)
            first = self.services.score_under(samples, "reference")
            gaps = (sample.old_logprobs - theirs for sample, theirs in zip(samples, first, strict=True))
            sums = [float(gap.sum(dtype=np.float64)) for gap in gaps]
            self.distances = {id(sample): gap for sample, gap in zip(samples, sums, strict=True)}
            self.metrics["bcpg_nsa/distance"] = float(np.mean(sums))

    def advantages(self, group: Group, advantages: np.ndarray) -> "np.ndarray | list[np.ndarray]":
        """Weigh the advantages, and subtract the penalties."""
        return [
            own * self.weights.get(id(sample), np.float32(1))
            - np.float32(self.settings.tau * self.distances.get(id(sample), 0.0))
            for sample, own in zip(group.samples, per_token(advantages, group.samples), strict=True)
        ]

    def _correct_tokens(self, query: Query, sample: Sample) -> np.ndarray:
        """Return which tokens of a response are of correct steps, bool [L]."""
        tokenizer = self.services.tokenizer
        ends = np.cumsum(sample.rollout.turn_lengths)[:-1]
        turns = np.split(sample.rollout.response_tokens, ends)
        spans: list[Any] = [self.spans(query, decode(tokenizer, turn)) for turn in turns]
        return np.concatenate([tokens_within(tokenizer, *pair) for pair in zip(turns, spans, strict=True)])


def correct_equations(query: Query, response: str) -> list[Span]:
    """Find the equations of sums that hold: the left side equals the right one, or the number that it begins with.

    So a chain of running totals, `7+8=15-9=6`, is read equation by equation, and so are sums that are rewritten.
    """
    found, parts = [], ["", *_sums(response), ""]
    for place, sign in enumerate(parts):
        if sign != "=":
            continue
        before, left, right, after = (
            parts[place + step] if 0 <= place + step < len(parts) else "" for step in (-2, -1, 1, 2)
        )
        if isinstance(left, str) or isinstance(right, str) or before in _FACTORS:
            continue
        value = left.value()
        if after not in _FACTORS and value == right.value():
            found.append((left.start, right.ends[-1]))
        elif (after not in _FACTORS or len(right.terms) > 1) and value == right.terms[0]:
            found.append((left.start, right.ends[0]))
    return found


@dataclass
class _Sum:
    """A sum of whole numbers in a text: where it starts, its signed terms, and where each ends."""

    start: int
    terms: list[int]
    ends: list[int]

    def value(self) -> int:
        return sum(self.terms)


def _sums(text: str) -> list[_Sum | str]:
    """Read a text as sums, and single characters between them."""
    parts: list[_Sum | str] = []
    for match in _TOKEN.finditer(text):
        if not match[0].isdecimal() or len(match[0]) > _LONGEST_NUMBER:
            parts.append(match[0][:1])
        elif parts[-1:] in (["+"], ["-"]) and isinstance(last := parts[-2:][0], _Sum):
            last.terms.append(int(f"{parts.pop()}{match[0]}"))
            last.ends.append(match.end())
        else:
            parts.append(_Sum(match.start(), [int(match[0])], [match.end()]))
    return parts


def tokens_within(tokenizer: "PreTrainedTokenizerBase", tokens: np.ndarray, spans: list[Span]) -> np.ndarray:
    """Return which tokens, int [L], reach into a span [start, end) of their text's characters: bool [L]."""
    mask, places = np.zeros(len(tokens), bool), range(len(tokens) + 1)
    length = functools.cache(lambda count: len(decode(tokenizer, tokens[:count])))
    for start, end in spans:
        first = bisect_right(places, start, key=length) - 1
        mask[first : bisect_left(places, end, lo=first, key=length)] = True
    return mask
