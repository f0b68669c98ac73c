"""List what an editorial pass must not change: `python -m website.compare_texts REV [PATH …]`."""

import argparse
import ast
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from website.texts import frozen, text_at


def main() -> int:
    """Print each number, code span and link that only one of the two versions has; exit code 1 where there is any."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("revision", help="of git: the text before")
    parser.add_argument("paths", nargs="*", default=["README.md", "docs"], help="default: README.md and docs")
    arguments = parser.parse_args()
    before, after = Counter[str](), Counter[str]()
    for old, new in _changed(arguments.revision, arguments.paths):
        one = _frozen(old, text_at(arguments.revision, old)) if old else Counter[str]()
        two = _frozen(new, Path(new).read_text(encoding="utf-8")) if new else Counter[str]()
        before += one - two
        after += two - one
        for sign, only in (("-", one - two), ("+", two - one)):
            for what, count in sorted(only.items()):
                print(
                    f"{new or old}: {sign} {what if len(what) < 200 else what[:200] + ' …'!r}"
                    + f" ×{count}" * (count > 1)
                )
    moved = before & after
    print(f"{(before - moved).total()} gone, {(after - moved).total()} new, {moved.total()} moved to another page")
    return int(before != after)


def _changed(revision: str, paths: list[str]) -> Iterator[tuple[str | None, str | None]]:
    """Yield (old path, new path) of every text that differs from the revision."""
    command = ["git", "diff", "--name-status", "--find-renames=40%", revision, "--", *paths]
    for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
        status, *names = line.split("\t")
        if not names[-1].endswith((".md", ".py")):
            continue
        yield (None if status == "A" else names[0]), (None if status == "D" else names[-1])


def _frozen(path: str, text: str) -> Counter[str]:
    """Count a page's frozen parts; of code those of its strings, and everything else as one block."""
    if path.endswith(".md"):
        return frozen(text)
    tree = ast.parse(text)
    found = Counter[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found += frozen(node.value)
            node.value = ""
    found[f"block {ast.unparse(tree)}"] += 1
    return found


if __name__ == "__main__":
    raise SystemExit(main())
