"""The site builds without a warning, and what it shows is complete."""

import html
import re
import subprocess
import sys

import pytest

from .pages import DOCS, ROOT

pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install -e '.[docs]'")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", out]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, process.stdout + process.stderr
    return out


def test_every_page_of_the_docs_is_a_page_of_the_site(site):
    pages = {page.relative_to(DOCS).with_suffix(".html") for page in DOCS.rglob("*.md")}
    assert {page for page in pages if not (site / page).is_file()} == set()


def test_every_local_link_leads_to_a_file_and_an_anchor_of_the_site(site):
    for page in (DOCS / "index.md", *DOCS.glob("*/*.md")):
        built = site / page.relative_to(DOCS).with_suffix(".html")
        for target in re.findall(r'<a [^>]*href="([^"]+)"', built.read_text(encoding="utf-8")):
            path, _, anchor = html.unescape(target).partition("#")
            if ":" in target or not path:
                continue
            file = (built.parent / path).resolve()
            assert file.exists(), f"{page} links to {target}"
            if anchor and file.suffix == ".html":
                assert f'id="{anchor}"' in file.read_text(encoding="utf-8"), f"{page} links to {target}"


def test_formulas_are_drawn(site):
    text = (site / "method" / "r3.html").read_text(encoding="utf-8")
    assert text.count("<math") > 20 and "arithmatex" not in text


def test_linked_sources_are_pages(site):
    assert "def training_step" in re.sub(
        r"<[^>]+>", "", (site / "source/algorithms/grpo/algorithm.py.html").read_text()
    )
