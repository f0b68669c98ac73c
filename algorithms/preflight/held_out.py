"""Compare held-out problems with those of training."""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from algorithms.config.errors import ConfigError, shown
from r3env.data.templates import template

if TYPE_CHECKING:
    from r3env.core import Query, VerifiableEnv

_logger = logging.getLogger(__name__)


def check_held_out(
    environment: "VerifiableEnv",
    uids: Sequence[str],
    held_out: "VerifiableEnv",
    held_out_uids: Sequence[str],
    *,
    generated: bool,
) -> None:
    """Refuse to call problems held out that are trained on; warn of those that differ in their numbers alone.

    Args:
        environment: of training.
        uids: of its problems.
        held_out: of evaluation.
        held_out_uids: of its problems.
        generated: whether code writes the problems, whose templates it then shares by intent.

    Raises:
        ConfigError: problems are on both sides; one line with their number and an example.
    """
    asked = {_identity(query): query for query in map(held_out.query, held_out_uids)}
    like = Counter(filter(None, map(_template, () if generated else asked.values())))
    shared, alike = [], dict[str | None, str]()
    for query in map(environment.query, uids):
        if _identity(query) in asked:
            shared.append(query.problem)
        elif like and (form := _template(query)) in like:
            alike.setdefault(form, query.problem)
    if shared:
        raise ConfigError(
            f"evaluation.data: {len(shared)} of its {len(asked)} problems are training problems too, "
            f"such as {shown(shared[0])}; "
            "fix: take them out, or set evaluation.data=null to evaluate on the training problems"
        )
    if alike:
        _logger.warning(
            "evaluation.data: %d of its %d problems differ from training problems in their numbers alone; one of these "
            "is %s; fix: take them out, or read the accuracy as one on known wordings",
            sum(like[form] for form in alike if form),
            len(asked),
            shown(next(iter(alike.values()))),
        )


def _template(query: "Query") -> str | None:
    """Return the template of a problem; None where it is a game, whose problems have the same words by intent."""
    return template(query.problem) if query.answer else None


def _identity(query: "Query") -> tuple[str, str]:
    """Return what makes two queries the same problem; of games, which ask the same words, the uid."""
    return query.problem, query.answer or query.uid
