"""The table of models that were tried has what the tests run, and nothing else."""

import re

from algorithms.models.causal_lm import empty_causal_lm
from algorithms.models.composite import is_composite, text_config
from tests.shapes import BY_COMMANDS, NOT_IN_FLOAT32, PADDED, SHAPES

from .pages import DOCS, text_of

PAGE = DOCS / "guides/own-model.md"


def trained(name: str) -> str:
    config = SHAPES[name].make_config({})
    architecture = type(empty_causal_lm(text_config(config))).__name__
    return f"`{architecture}`{', the text alone' if is_composite(config) else ''}"


def test_the_table_has_what_the_tests_run():
    lines = re.findall(r"^\| `\w+` \| `\w+ForCausalLM`.*$", text_of(PAGE), re.MULTILINE)
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    assert [row[0].strip("`") for row in rows] == list(SHAPES)
    for (_, model, batches, by_transformers, by_vllm, by_commands), name in zip(rows, SHAPES, strict=True):
        assert model == trained(name)
        assert batches.partition(":")[0] == ("padded" if name in PADDED else "packed")
        assert by_transformers == "yes"
        assert by_vllm == ("no test" if name in NOT_IN_FLOAT32 else "yes")
        assert by_commands == ("yes" if name in BY_COMMANDS else "")
