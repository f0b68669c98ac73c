"""The page: one HTML file that holds its data, its style and its script, and asks the network for nothing."""

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

_SCRIPTS = (
    "elements.js",
    "header.js",
    "tables.js",
    "chart.js",
    "curves.js",
    "tokens.js",
    "group.js",
    "trajectories.js",
    "main.js",
)


def page(data: Mapping[str, Any], title: str) -> str:
    """Fill the template.

    Args:
        data: what JSON can hold. Of its text, anything may come from a policy.
        title: of the window.
    """
    style = _asset("page.css")
    # One function around all: no name leaves it, and none of the page's text can be mistaken for one.
    script = "(() => {\n'use strict';\n" + "\n".join(map(_asset, _SCRIPTS)) + "\n})();"
    parts = {
        "POLICY": _policy(style, script),
        "TITLE": _escaped(title),
        "STYLE": style,
        "SCRIPT": script,
        "DATA": inline_json(data),
    }
    text = _asset("page.html")
    before, *fields = text.split("{{")
    return before + "".join(parts[name] + rest for name, rest in (field.split("}}", 1) for field in fields))


def inline_json(value: Any) -> str:
    """JSON that no HTML parser finds an end tag or a comment in, whatever text it holds."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text.encode("utf-8", "replace").decode("utf-8")


def _policy(style: str, script: str) -> str:
    """Only this style and this script, by their hashes, and nothing from anywhere else."""
    return f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'"


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
    return f"'sha256-{digest}'"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _asset(name: str) -> str:
    return files("algorithms.report").joinpath("assets", name).read_text(encoding="utf-8")
