"""What an OpenEnv server says of its actions, to refuse a wrong `action` before an episode runs."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

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
