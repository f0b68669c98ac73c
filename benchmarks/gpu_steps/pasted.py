"""What somebody with a GPU can paste into an issue: the machine, each step's verdict and figures, and nobody's name."""

import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from typing import Any

from algorithms.utils.provenance import code_commit

# Folders of an absolute path, which may name its owner.
_FOLDERS = re.compile(r"(?<![\w.])/\S+/")


def pasted(machine: Mapping[str, Any], size: str, rows: Mapping[str, Mapping[str, Any]], order: Sequence[str]) -> str:
    """Return the record in Markdown: a table, and every number as JSON; without folders, host and user.

    Args:
        machine: GPUs, their memory and facts.
        size: of the model.
        rows: of the steps that ran, or why they did not.
        order: of the steps' names.
    """
    facts = {"commit": code_commit(), "model_size": size, **machine}
    names = [name for name in order if name in rows]
    table = [f"| {name} | {rows[name]['status']} | {_cell(rows[name]['summary'])} |" for name in names]
    figures = {name: rows[name]["figures"] for name in names if rows[name].get("figures")}
    text = "\n".join(
        [
            f"### first_gpu: {', '.join(machine['gpus']) or 'no GPU'}",
            "",
            "| step | ended | found, or why not |",
            "|---|---|---|",
            *table,
            "",
            "```json",
            json.dumps({"machine": facts, "figures": figures}, default=float),
            "```",
            "",
        ]
    )
    # A user's name is one in paths alone: another word may be the same, such as the user `ray`.
    for before, name in (("(?<=/)", os.path.basename(os.path.expanduser("~"))), (r"\b", platform.node())):
        if name:
            text = re.sub(rf"{before}{re.escape(name)}\b", "…", text)
    return _FOLDERS.sub("", text)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
