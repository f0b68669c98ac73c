"""Environments behind an OpenEnv server by `r3env.adapters.openenv:OpenEnv-v0`.

A query is a seed, which the server's `reset` gets. Each episode has a session of its own, over the WebSocket that
OpenEnv's client opens: a server has to hold as many as there are concurrent episodes (`max_concurrent_envs`).
"""

import contextlib
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

import gymnasium

from r3env.adapters.foreign import FIRST_SEEDS, Reply, SeededEnv, seed_of
from r3env.core import Queries, Query, QueryList
from r3env.data.shared import load_shared
from r3env.registry import OptionError, UnreachableError

_SCHEMES = {"ws": "http", "wss": "https"}


def check_action(url: str, action: str, timeout_s: float) -> None:
    """Check that the server's action has a field of this name, and that text alone makes an action.

    A server that does not describe its actions, as OpenEnv's do under `/schema`, is not checked.

    Args:
        url: of the server.
        action: the field that takes the response.
        timeout_s: seconds to wait for the server.

    Raises:
        UnreachableError: nothing answers at `url`.
        OptionError: `action` is no field of text; one line with the fix.
    """
    schema = _action_schema(url, timeout_s)
    fields: Mapping[str, Mapping[str, Any]] = schema.get("properties") or {}
    if not fields:
        return
    texts = [name for name, field in fields.items() if _takes_text(field)]
    fix = f"fix: environment.options.action={texts[0]}" if texts else "fix: none of its fields is text"
    if action not in fields and not schema.get("additionalProperties", True):
        found = ", ".join(name for name in fields if name != "metadata") or "none"
        raise OptionError("action", f"the action of {url} has no field {action!r}; it has {found}; {fix}")
    if action in fields and not _takes_text(fields[action]):
        raise OptionError("action", f"field {action!r} of the action of {url} takes no text; {fix}")
    if others := [name for name in schema.get("required") or () if name != action]:
        raise OptionError(
            "action",
            f"an action of {url} needs {', '.join(others)} beside {action!r}, and a response fills one field; fix: "
            "give them a default on the server",
        )


def _action_schema(url: str, timeout_s: float) -> Mapping[str, Any]:
    """Return the JSON schema of the server's action; empty where it gives none."""
    try:
        with urllib.request.urlopen(f"{_http(url)}/schema", timeout=timeout_s) as reply:
            described = json.load(reply)
    except urllib.error.HTTPError:  # a server, which knows no such page
        return {}
    except ValueError as error:  # an address that is none, or a page that is no JSON
        if "://" in url:
            return {}
        raise unreachable(url, error) from error
    except OSError as error:
        raise unreachable(url, getattr(error, "reason", error)) from error
    schema = described.get("action") if isinstance(described, dict) else None
    return schema if isinstance(schema, dict) else {}


def unreachable(url: str, reason: object) -> UnreachableError:
    """Return the error of a server that does not answer."""
    fix = "fix: start the server first, or name the address where it listens, as in http://localhost:8000"
    return UnreachableError("url", f"no OpenEnv server answers at {url} ({reason}); {fix}")


def _http(url: str) -> str:
    scheme, separator, rest = url.rstrip("/").partition("://")
    if not separator:
        return f"http://{scheme}"
    return f"{_SCHEMES.get(scheme, scheme)}://{rest}"


def _takes_text(field: Mapping[str, Any]) -> bool:
    """Return whether text fits; a field without a type takes anything."""
    kinds = field.get("anyOf") or field.get("oneOf") or [field]
    return any(kind.get("type") == "string" or not kind.keys() & {"type", "$ref", "enum", "const"} for kind in kinds)


_FULL = "CAPACITY_REACHED"
_RETRY_S = 0.2
_SECOND_SESSION_S = 10.0  # the server may need some time to end the session of an episode before


class OpenEnvEnv(SeededEnv):
    """Episodes of an environment that an OpenEnv server runs."""

    def __init__(
        self,
        url: str = "http://localhost:8000",
        *,
        data: str = "train",
        size: int = 256,
        action: str = "message",
        observation: str | None = None,
        options: Mapping[str, Any] | None = None,
        sessions: int | None = None,
        timeout_s: float = 60.0,
        session_timeout_s: float = 1200.0,
        **arguments: Any,
    ) -> None:
        """Make the environment; the server is contacted when the first problem is needed.

        Args:
            url: Of the server.
            data: `train` or `heldout`, which share no seed.
            size: Queries, that is, seeds.
            action: Field of the server's action that takes the response.
            observation: Field of its observation that becomes the user turn; None for its only text.
            options: Further arguments of `reset`.
            sessions: Episodes that an env runner begins at once, for a server that holds fewer than there are; None:
                as many as it can.
            timeout_s: Seconds to connect, and to be answered.
            session_timeout_s: Seconds to wait for a session while the server is full.
            arguments: Of `ForeignEnv`; the server decides on the number of turns.

        Raises:
            ImportError: openenv-core is not installed.
            ValueError: An unknown `data`, or a number that is not positive.
        """
        super().__init__(url, prefix=data, data=data, size=size, **arguments)
        if sessions is not None and not sessions > 0:
            raise OptionError("sessions", f"must be positive, it is {sessions!r}")
        if not timeout_s > 0:
            raise ValueError(f"timeout_s must be positive, it is {timeout_s!r}")
        self.url, self.timeout_s, self.session_timeout_s = url, timeout_s, session_timeout_s
        self.max_episodes = sessions
        self.action, self.observation, self.options = action, observation, dict(options or {})
        self._client_class = _import_client()
        self._session: Any = None
        self._abandoned = 0  # episodes

    def load_queries(self) -> Queries:
        """Make one query per seed, whose text is the server's first observation; fetched once for all environments.

        Raises:
            OptionError: No server answers at `url`, or its action does not take a response as `action`.
        """
        key = (
            "openenv",
            self.url,
            self.data,
            self.size,
            self.action,
            self.observation,
            repr(sorted(self.options.items())),
        )
        return load_shared(key, self._ask_for_queries)

    def begin(self, query: Query) -> None:
        """Reset a session of the server to the query's seed.

        Raises:
            ConnectionError: There is no server, or it stays full.
        """
        self.observe(seed_of(query))

    def reply(self, response: str) -> Reply:
        """Send the response as an action; the session ends with the episode, and with an error.

        An answer that came after its time limit would be taken for that to the next request of the session.
        """
        try:
            result = self._session.step({self.action: response})
        except BaseException:
            self.close()
            raise
        reply = Reply(self._text(result.observation), float(result.reward or 0.0), bool(result.done))
        if reply.done:
            self.close()
        return reply

    def close(self) -> None:
        """End the session."""
        session, self._session = self._session, None
        if session is not None:
            _end(session)

    def abandon(self) -> None:
        """End the session of an episode that was cut off: another episode may wait for it."""
        self._abandoned += 1
        session, self._session = self._session, None
        if session is not None:  # elsewhere, as a server may take its time
            threading.Thread(target=_end, args=(session,), daemon=True).start()

    def check_concurrency(self, episodes: int) -> None:
        """Refuse a server that holds one session where several episodes run at a time.

        A server that holds some but not all is no error: its episodes wait for each other.

        Raises:
            OptionError: The server turns a second session away.
        """
        if episodes < 2 or self.max_episodes == 1:
            return
        limit = min(self.timeout_s, _SECOND_SESSION_S)
        second = OpenEnvEnv(
            self.url, observation=self.observation, options=self.options, timeout_s=limit, session_timeout_s=limit
        )
        seed = FIRST_SEEDS[self.data]
        with contextlib.closing(self), contextlib.closing(second):
            self.observe(seed)
            try:
                second.observe(seed)
            except ConnectionError as error:
                raise OptionError(
                    "url",
                    f"{self.url} holds one session, and up to {episodes} episodes run at a time; fix: serve it with "
                    f"max_concurrent_envs={episodes}, or run one at a time (env_runners.num_env_runners=0 "
                    "environment.options.sessions=1)",
                ) from error

    def _ask_for_queries(self) -> QueryList:
        check_action(self.url, self.action, self.timeout_s)
        try:
            return QueryList(self._make_queries())
        except ConnectionError as error:
            raise unreachable(self.url, error) from error
        finally:
            self.close()

    def observe(self, seed: int) -> str:
        """Begin an episode in the running session, or in a new one; returns the first user turn."""
        deadline, before = time.monotonic() + self.session_timeout_s, self._abandoned
        while self._abandoned == before:
            is_new = self._session is None
            try:
                if self._session is None:
                    self._session = self._connect()
                text = self._text(self._session.reset(seed=seed, **self.options).observation)
                if self._abandoned == before:
                    return text
                break
            except Exception as error:
                self.close()
                if not is_new:  # the server may have been started again since
                    continue
                if not _is_full(error):
                    raise
                if time.monotonic() > deadline:
                    raise ConnectionError(
                        f"{self.url} holds no further session; fix: serve it with a larger max_concurrent_envs, or "
                        "begin fewer episodes at once (environment.options.sessions)"
                    ) from error
                time.sleep(_RETRY_S)
        self.close()  # another episode may wait for it
        raise ConnectionError("the episode was given up")

    def _connect(self) -> Any:
        client = self._client_class(self.url, connect_timeout_s=self.timeout_s, message_timeout_s=self.timeout_s)
        session = client.sync()
        session.connect()
        return session

    def _text(self, observation: Mapping[str, Any]) -> str:
        """Return the user turn that the observation is.

        Raises:
            ValueError: It has no such field, or several texts.
        """
        if self.observation is not None:
            if self.observation not in observation:
                fields = ", ".join(observation) or "none"
                raise ValueError(f"observation: the server's has no field {self.observation!r}; it has {fields}")
            value = observation[self.observation]
            return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        texts = {name: value for name, value in observation.items() if isinstance(value, str)}
        if len(texts) != 1:
            found = ", ".join(texts) or "none"
            raise ValueError(f"observation: name the field that the policy reads; the server's texts are {found}")
        return next(iter(texts.values()))


def _end(session: Any) -> None:
    with contextlib.suppress(Exception):  # one that is broken has ended
        session.close()


def _is_full(error: Exception) -> bool:
    """Whether a server turned a session away: it says so and hangs up, and either may be seen first."""
    return _FULL in str(error) or type(error).__name__ == "ConnectionClosedOK"


def _import_client() -> Any:
    try:
        from openenv.core.generic_client import GenericEnvClient
    except ImportError as error:
        raise ImportError(f"openenv-core cannot be imported ({error}): pip install -e '.[openenv]'") from error
    return GenericEnvClient


gymnasium.register("OpenEnv-v0", OpenEnvEnv)
