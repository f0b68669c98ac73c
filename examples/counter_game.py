"""A tool game of several turns: bring a counter to a number by commands; incorrect ones get a diagnosis."""

import itertools
import random
import re
from typing import Any

import gymnasium

from r3env.core import Query, Reason, Verdict, VerifiableEnv

HIGHEST, MOST, COST = 99, 3, 0.1
RULES = (
    "Bring the counter from {start} to {target}. It stays between 0 and {highest}. The commands are +N and -N, with N "
    "from 1 to 9, *2, and /2 for even numbers. End your turn with a line of one to {most} commands, such as: +7 *2 -1"
)
COMMANDS = (*(f"{sign}{number}" for sign in "+-" for number in range(1, 10)), "*2", "/2")
gymnasium.register("CounterGame-v0", f"{__name__}:CounterGame")


class CounterGame(VerifiableEnv):
    """Each target can be reached in one turn of three commands; an episode has up to `max_turns`.

    Reaching the target pays 1, a turn with a wrong command costs 0.1. The state is the counter. `data` is `train` or
    `heldout`, which share no pair of start and target.
    """

    def __init__(self, data: str = "train", max_turns: int = 4, **arguments: Any) -> None:
        super().__init__(max_turns=max_turns, **arguments)
        if data not in ("train", "heldout"):
            raise ValueError(f"data must be train or heldout, it is {data!r}")
        pairs = random.Random(0).sample(sorted(itertools.permutations(range(1, 31), 2)), 250)
        self.pairs = pairs[:200] if data == "train" else pairs[200:]
        self.counter: int | None = None

    def load_queries(self) -> list[Query]:
        """Make one query per pair; the answer is the target."""
        rules = RULES.replace("{highest}", str(HIGHEST)).replace("{most}", str(MOST))
        return [Query(f"{a}-to-{b}", rules.format(start=a, target=b), str(b), info={"start": a}) for a, b in self.pairs]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin at the start, after a failed attempt too."""
        text, info = super().reset(seed=seed, options=options)
        self.counter = self.query(info["uid"]).info["start"]
        return text, info | {"state": str(self.counter)}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Carry out a turn; the info names the counter's state."""
        before = self.counter
        observation, reward, terminated, truncated, info = super().step(action)
        assert before is not None
        self.counter, _ = carry_out(before, action)
        return observation, reward, terminated, truncated, info | {"state": str(self.counter)}

    def verify(self, query: Query, response: str) -> Verdict:
        """Judge a turn correct when it ends at the target; the feedback says where it ended, and why."""
        begun = query.info["start"] if self.counter is None else self.counter
        counter, problem = carry_out(begun, response)
        if counter == int(query.answer) and not problem:
            return Verdict(True, Reason.EQUAL)
        where = "" if counter == int(query.answer) else f", and not at {query.answer}"
        said = f"{problem} The counter is at {counter}{where}.".strip()
        if self._turns_left <= 1:  # what comes next, if anything does, begins anew
            said += f" It is set back to {query.info['start']}."
        return Verdict(False, Reason.DIFFERENT, score=-COST if problem else 0.0, feedback=said)

    def feedback(self, query: Query, response: str, verdict: Verdict) -> str:
        """Return the diagnosis; after a failed attempt of another episode, what is known of that one."""
        again = f"That did not reach {query.answer}. The counter is set back to {query.info['start']}."
        return f"{verdict.feedback or again} Try again."

    def reference_response(self, query: Query) -> str:
        """Return commands that reach the target in one turn."""
        start, target = query.info["start"], int(query.answer)
        for length in range(1, MOST + 1):
            for commands in itertools.product(COMMANDS, repeat=length):
                if carry_out(start, " ".join(commands)) == (target, ""):
                    return " ".join(commands)
        raise ValueError(f"{query.uid} has no solution")


def carry_out(counter: int, response: str) -> tuple[int, str]:
    """Return where the commands in the last line lead, and why the first that cannot be carried out fails."""
    lines = response.strip().splitlines()
    commands = re.findall(r"[-+*/]\d+", lines[-1]) if lines else []
    if not commands:
        return counter, "There is no command in the last line of your turn."
    for command in commands[:MOST]:
        moved = {"*": counter * 2, "/": counter // 2}.get(command[0], counter)
        moved += int(command) if command[0] in "+-" and len(command) < 5 else 0
        if command not in COMMANDS:
            return counter, f"There is no command {command[:5]}."
        if command == "/2" and counter % 2:
            return counter, f"{counter} is odd: /2 cannot be carried out."
        if not 0 <= moved <= HIGHEST:
            return counter, f"{command} would leave the counter at {moved}."
        counter = moved
    return counter, "" if len(commands) <= MOST else f"Only the first {MOST} commands were carried out."
