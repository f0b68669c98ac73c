"""Hooks of the site: linked sources become pages, formulas become MathML, diagrams need no other host."""

import html
import os
import re
import unicodedata
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from website.texts import links, with_links

ROOT = Path(__file__).parent.parent
MERMAID = ROOT / ".venv" / "site" / "node_modules" / "mermaid" / "dist" / "mermaid.min.js"
SOURCES = "source"

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".sh": "sh", ".json": "json"}


def on_config(config: MkDocsConfig) -> None:
    """Draw diagrams with the installed script, if there is one; else the theme fetches it."""
    if MERMAID.is_file():
        config.extra_javascript.append("mermaid.min.js")


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the style, and a page for each file outside docs/ that a page links to."""
    files.append(File.generated(config, "style.css", abs_src_path=str(ROOT / "website" / "style.css")))
    if MERMAID.is_file():
        files.append(File.generated(config, "mermaid.min.js", abs_src_path=str(MERMAID)))
    waiting = [(page, page.content_string) for page in files.documentation_pages()]
    known: set[Path] = set()
    while waiting:
        page, text = waiting.pop()
        for target in _outside(_origin(page.src_uri), text) - known:
            known.add(target)
            added = File.generated(config, _name(target), content=_shown(target))
            files.append(added)
            if target.suffix == ".md":
                waiting.append((added, added.content_string))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to files outside docs/ at their pages."""
    origin = _origin(page.file.src_uri)

    def led(link: str) -> str:
        target = _target(origin, link)
        if target is None:
            return link
        uri = target.relative_to(ROOT / "docs").as_posix() if _is_page(target) else _name(target)
        there = os.path.relpath(uri, os.path.dirname(page.file.src_uri) or ".")
        _, mark, anchor = link.partition("#")
        return there + mark + anchor if target.suffix == ".md" else there

    return with_links(markdown, led)


def on_page_content(content: str, **_: Any) -> str:
    """Turn formulas into MathML, which browsers draw without a script."""
    return _FORMULA.sub(
        lambda match: convert(html.unescape(match[3]), display="block" if match[2] == "[" else "inline"), content
    )


def github_slug(text: str, separator: str) -> str:
    """Return the anchor that GitHub gives a heading, so that a link works in both places."""
    plain = unicodedata.normalize("NFC", re.sub(r"<[^>]+>", "", html.unescape(text))).lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", separator)


def _outside(origin: Path, text: str) -> set[Path]:
    targets = (_target(origin, link) for link in links(text))
    return {target for target in targets if target and not _is_page(target)}


def _target(origin: Path, link: str) -> Path | None:
    """Return a link's file or folder; None for other hosts, for what docs/ serves itself, and within the page."""
    path = link.partition("#")[0]
    if ":" in link or not path:
        return None
    target = (origin.parent / path).resolve()
    if not target.exists() or not target.is_relative_to(ROOT):
        return None
    return None if target.is_relative_to(ROOT / "docs") and not _is_page(target) else target


def _is_page(target: Path) -> bool:
    return target.is_relative_to(ROOT / "docs") and target.suffix == ".md"


def _origin(uri: str) -> Path:
    """Return the source file of a page of the site."""
    inside = uri.removeprefix(f"{SOURCES}/")
    return ROOT / inside if inside != uri else ROOT / "docs" / uri


def _name(target: Path) -> str:
    path = target.relative_to(ROOT).as_posix()
    return f"{SOURCES}/{path}" if target.suffix == ".md" else f"{SOURCES}/{path}.md"


def _shown(target: Path) -> str:
    """Return a page's Markdown: of a folder its files, of a page itself, of code the code."""
    title = f"---\nsearch: {{exclude: true}}\n---\n\n# {target.relative_to(ROOT).as_posix()}\n\n"
    if target.is_dir():
        return title + "".join(f"- `{file.name}`\n" for file in sorted(target.iterdir()) if file.name[0] not in "_.")
    text = target.read_text(encoding="utf-8")
    if target.suffix == ".md":
        return text
    return f"{title}````{_LANGUAGES.get(target.suffix, 'text')}\n{text}\n````\n"
