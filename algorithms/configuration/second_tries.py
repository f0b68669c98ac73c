"""Second tries of an evaluation. Imports no Ray."""

from algorithms.configuration.errors import ConfigError
from algorithms.configuration.settings import EvaluationSettings


def check_second_tries(evaluation: EvaluationSettings, max_turns: int) -> None:
    """Check that a second try is one: what follows the first answer.

    Raises:
        ConfigError: answers have several turns already.
    """
    if evaluation.reflection and max_turns > 1:
        raise ConfigError(
            f"evaluation.reflection: true with episodes of up to {max_turns} turns, which have second tries of their "
            "own; fix: environment.max_turns=1 or evaluation.reflection=false"
        )
