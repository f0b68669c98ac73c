"""The error of configuration, and the nearest correct spelling that it suggests."""

import difflib
from collections.abc import Iterable

from algorithms.utils.errors import InputError

_LONGEST_VALUE = 80
_OWN = "; that of a method of your own is there once training names it"


class ConfigError(InputError):
    """A setting, file, model, environment or data set that cannot be used.

    The message is one line that names `section.key` (or the file), the value, the rule and the nearest right
    spelling, so that a script can print it as it is.
    """

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class ServiceError(ConfigError):
    """A service that the configuration names does not answer: the name is wrong, or the service is down for now.

    It ends a command as any other input that cannot be used, but for a run that `run.restarts` started again.
    """


def shown(value: object) -> str:
    """Return the value as one writes it in YAML, shortened to fit a line."""
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


def close_match(word: str, candidates: Iterable[str]) -> str | None:
    """Return the candidate spelled most like `word`, None when none is close; upper and lower case count as equal."""
    by_folded = {candidate.casefold(): candidate for candidate in candidates}
    matches = difflib.get_close_matches(word.casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[matches[0]] if matches else None


def no_such_section(name: str, section: str, known: Iterable[str], ending: str | None = None) -> ConfigError:
    """Return the error of an unknown section.

    Args:
        name: as it was written, with its key or without.
        section: the part that is unknown.
        known: all sections.
        ending: a better end of the line than the nearest spelling.
    """
    sections = list(known)
    own = "" if ending or close_match(section, sections) else _OWN
    return ConfigError(f"{name}: no such section; {ending or did_you_mean(section, sections)}{own}")


def did_you_mean(word: str, candidates: Iterable[str]) -> str:
    """Return the end of an error line: the nearest spelling, or else the known names."""
    known = list(candidates)
    match = close_match(word, known)
    if match is not None:
        return f"did you mean {match}?"
    return f"known: {', '.join(known)}" if known else "none is known"
