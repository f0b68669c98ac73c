"""`r3env/Constraints-v0`: short texts about a topic that follow precise instructions, checked by code."""

from collections.abc import Sequence

from r3env.constraints.generation import Problems
from r3env.constraints.kind import KINDS, SPLITS
from r3env.constraints.requirements import Requirements
from r3env.core import Queries, Query, QueryList, Reason, Verdict, VerifiableEnv
from r3env.data.shared import load_shared
from r3env.data.sources import parse_spec
from r3env.reasoning import visible_text
from r3env.registry import OptionError
from r3env.spelling import nearest

_SPEC_KEYS = ("seed", "size", "level")
_MOST = 5


class ConstraintsEnv(VerifiableEnv):
    """Generated prompts for a short text that names its topic, has a stated length in words and meets constraints.

    An answer is correct if every requirement is met; the info's `rewards` has each one's outcome by name. The turn
    after an incorrect answer says which requirement failed, and how.
    """

    def __init__(
        self,
        data: str = "train",
        *,
        seed: int = 0,
        size: int = 500,
        level: int = 1,
        kinds: Sequence[str] = (),
        partial_credit: bool = False,
        instruction: str = "",
        reflection_guidance: str = "Write the text again so that it meets every requirement.",
        max_turns: int = 1,
    ) -> None:
        """Make the environment; prompts are generated when the first one is needed.

        Args:
            data: `train`, `development` or `heldout`, which share neither topics nor wordings, and optionally
                `#seed=…,size=…,level=…` behind it, which overrides these arguments.
            seed: Which prompts; others for every seed.
            size: How many.
            level: Constraints in each, besides topic and length.
            kinds: The kinds that they are taken from, as `r3env.constraints.kind.KINDS` has them; all if empty.
            partial_credit: Whether the reward is the share of requirements that are met; False: 1 if all are, else 0.
            instruction: Text that follows the prompt.
            reflection_guidance: Text that follows what was wrong, in the turn after an incorrect answer.
            max_turns: Answers that the policy may give in an episode.

        Raises:
            OptionError: There is no such split or kind, or a number is out of its range.
        """
        super().__init__(instruction=instruction, reflection_guidance=reflection_guidance, max_turns=max_turns)
        split, values = parse_spec(data, _SPEC_KEYS)
        if split not in SPLITS:
            raise OptionError("data", f"{data!r} is none of {', '.join(SPLITS)}")
        given = {"seed": seed, "size": size, "level": level, **values}
        if isinstance(kinds, str):
            raise OptionError("kinds", f"must be a list of names, it is {kinds!r}; fix: [{kinds}]")
        for name in kinds:
            if name not in KINDS:
                raise OptionError("kinds", f"there is no kind {name!r}; the nearest is {nearest(str(name), KINDS)}")
        chosen = tuple(dict.fromkeys(kinds)) or tuple(KINDS)
        for name, lowest, highest in (("seed", 0, None), ("size", 1, None), ("level", 1, min(_MOST, len(chosen)))):
            value = given[name]
            whole = isinstance(value, int) and not isinstance(value, bool)
            if not whole or value < lowest or (highest is not None and value > highest):
                bounds = f"at least {lowest}" if highest is None else f"from {lowest} to {highest}"
                raise OptionError(name, f"must be a whole number, {bounds}, it is {value!r}")
        self.problems = Problems(split, **given, kinds=chosen)
        self.partial_credit = partial_credit

    def load_queries(self) -> Queries:
        """Return the prompts, shared with every environment of this process that wants the same ones."""
        return load_shared(self.problems, lambda: QueryList(self.problems.generate()))

    def verify(self, query: Query, response: str) -> Verdict:
        """Check every requirement."""
        text = (visible_text(response) or "").strip()
        if not text:
            return Verdict(False, Reason.NO_ANSWER, 0.0 if self.partial_credit else None)
        faults = Requirements.parse(query.answer).faults(text)
        met = {name: float(not fault) for name, fault in faults.items()}
        correct = all(met.values())
        return Verdict(
            correct,
            Reason.EQUAL if correct else Reason.DIFFERENT,
            sum(met.values()) / len(met) if self.partial_credit else None,
            " ".join(filter(None, faults.values())),
            rewards=met,
        )

    def feedback(self, query: Query, response: str, verdict: Verdict) -> str:
        """Return what is wrong with the text, and the guidance."""
        said = f"Your text does not meet the requirements. {verdict.feedback}" if verdict.feedback else ""
        return "\n".join(filter(None, [said, self.reflection_guidance]))

    def reference_response(self, query: Query) -> str:
        """Return a text that meets every requirement, of words without sense."""
        return str(query.info["reference"])

    def answer_form(self, query: Query) -> str:
        """Return that the whole answer is read."""
        return "a text: all that stands behind any thinking"
