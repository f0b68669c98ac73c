"""What the pages name exists: files, settings, modules, options."""

import importlib.util
import re
from functools import cache

import pytest

from .pages import DOCS, PAGES, ROOT, command_lines, helped, links, own_code, sections, text_of

# `section.key`, also with what follows it: `section.key=value`. Files are called so too.
KEY = re.compile(r"([a-z_]+)\.([a-z_0-9]+)(?:[=:.\[ ].*)?")
RLLIBS_OWN = "env_config"


@cache
def settings() -> dict[str, set[str]]:
    """Section → keys, of training and of evaluations."""
    return {name: set(section.model_fields) for name, section in sections().items()}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in links(page):
        path, _, anchor = target.partition("#")
        if target.startswith(("http://", "https://")):
            continue
        file = page if not path else (page.parent / path).resolve()
        assert file.exists(), f"{page.name} links to {target}"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), f"{page.name} links to {target}; there is {sorted(anchors(file))}"


def anchors(page) -> set[str]:
    """The anchors that GitHub gives a page's headings, and those that a page names itself."""
    headings = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    named = re.findall(r'<a id="([^"]+)"></a>', text_of(page))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings} | {*named}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_in_backticks_exist(page):
    for code in own_code(page):
        match = KEY.fullmatch(code)
        if match and match[1] in settings() and match[2] not in ("json", "yaml", "sqlite", RLLIBS_OWN):
            assert match[2] in settings()[match[1]], f"{page.name} names {code}"


def test_columns_of_other_libraries_may_hold_names_that_look_like_ours(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "`run.here`\n\n| verl | here | TRL |\n|---|---|---|\n| `reward.num_workers` | `reward.ours` | `run.a` |\n\n"
        "| here | note |\n|---|---|\n| `reward.also` | `reward.too` |\n",
        encoding="utf-8",
    )
    assert own_code(page) == ["run.here", "reward.ours", "reward.also", "reward.too"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_name_modules_files_and_settings_that_exist(page):
    for module, *words in command_lines(page):
        if module.partition(".")[0] not in ("algorithms", "benchmarks", "r3env"):
            continue
        assert importlib.util.find_spec(module) is not None, f"{page.name}: python -m {module}"
        for word, following in zip(words, [*words, ""][1:], strict=True):
            if word == "--config" and not following.isupper() and following.startswith("configs/"):
                assert (ROOT / following).is_file(), f"{page.name}: {following}"
            section, dot, rest = word.partition("=")[0].partition(".")
            if dot and "=" in word and section in settings():
                assert rest.partition(".")[0] in settings()[section], f"{page.name}: {word}"


@pytest.mark.slow
def test_options_of_commands_exist():
    used: dict[str, set[str]] = {}
    for page in PAGES:
        for module, *words in command_lines(page):
            if module.startswith(("algorithms.", "benchmarks.", "r3env.")):
                used.setdefault(module, set()).update(w.partition("=")[0] for w in words if w.startswith("--"))
    for module, options in used.items():
        if options:
            known = set(re.findall(r"--[a-z][a-z0-9-]*", helped(module)))
            assert options <= known, f"python -m {module} has no {sorted(options - known)}"


def test_the_index_lists_every_page():
    listed = {target.partition("#")[0] for target in links(DOCS / "index.md")}
    assert {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} - {"index.md"} <= listed
