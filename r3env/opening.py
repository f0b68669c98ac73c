"""What is checked of an environment before it is used: its id, its prompts and its rewards; one line for each fault."""

import contextlib
import importlib
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium

from r3env.env_files import is_path, load_env_class
from r3env.named_functions import describe
from r3env.queries import variants_of

if TYPE_CHECKING:
    from r3env.core import VerifiableEnv

# Packages whose registered environments cannot be meant.
_GAMES = frozenset({"gymnasium", "shimmy", "ale_py"})


class EnvIdError(ValueError):
    """An id whose module or class cannot be imported; the message says why, without the id."""


class NotRegisteredError(ValueError):
    """An id that names no environment.

    Attributes:
        known: the ids that could have been meant.
    """

    def __init__(self, known: Sequence[str]) -> None:
        super().__init__("is not registered")
        self.known = tuple(known)


def check_id(env_id: str) -> None:
    """Check that an id names an environment; import its module where it is `module:Id-v0`, or its class's file.

    Raises:
        EnvIdError: the module or the class cannot be imported.
        NotRegisteredError: no environment has this id.
    """
    if is_path(env_id):
        try:
            load_env_class(env_id)
        except ValueError as error:
            raise EnvIdError(str(error)) from error
        return
    module, colon, _ = env_id.partition(":")
    if colon:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            fix = "fix: start from the folder that holds it, or put that folder on PYTHONPATH"
            raise EnvIdError(f"there is no module {error.name}; {fix}") from None
        except (Exception, SystemExit) as error:  # the module is the user's: importing it can raise anything
            raise EnvIdError(f"importing {module} fails: {describe(error)}") from error
    try:
        gymnasium.spec(env_id.removeprefix(f"{module}:"))
    except gymnasium.error.Error:
        # Gymnasium's own games cannot be meant.
        ours = [
            spec.id
            for spec in gymnasium.registry.values()
            if spec.namespace == "r3env" or _module(spec.entry_point).split(".")[0] not in _GAMES
        ]
        raise NotRegisteredError([f"{module}:{entry}" for entry in ours] + ours if colon else ours) from None


def user_prompt(environment: "VerifiableEnv", uid: str) -> str:
    """Return the first user turn of a query.

    Raises:
        TypeError: it is not text.
    """
    prompt: Any = environment.prompt(environment.query(uid))
    if not isinstance(prompt, str):
        raise TypeError(f"the prompt of query {uid!r} must be text, it is of type {type(prompt).__name__}")
    return prompt


def first_turns(environment: "VerifiableEnv", uid: str) -> tuple[Mapping[str, str], ...]:
    """Return the turns of a query up to where the policy begins to write; the first user turn is the last of them.

    Raises:
        TypeError: a prompt is not text.
    """
    return environment.query(uid).conversation(user_prompt(environment, uid))


def first_turns_of_forms(environment: "VerifiableEnv", uid: str) -> list[tuple[Mapping[str, str], ...]]:
    """Return the first turns of a query, and of each other form of it that can be read: `Query.info["variants"]`.

    Raises:
        TypeError: a prompt is not text.
    """
    found = [first_turns(environment, uid)]
    with contextlib.suppress(ValueError):  # who poses the forms says what is wrong with them
        forms = variants_of(environment.query(uid)).values()
        found += [form.conversation(environment.prompt(form)) for form in forms]
    return found


def finite_reward(reward: Any) -> float:
    """Return a reward as a number.

    Raises:
        ValueError: it is not a finite number.
    """
    number = float(reward)
    if not math.isfinite(number):
        raise ValueError(f"reward {number} is not a finite number")
    return number


def _module(entry_point: Any) -> str:
    """Where an environment's class comes from: registered as `module:Class`, or as the class itself."""
    return entry_point if isinstance(entry_point, str) else str(getattr(entry_point, "__module__", ""))
