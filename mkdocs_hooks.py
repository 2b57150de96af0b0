"""What the site needs beside the pages: README.md is its first page, and files outside docs/ are named, not linked."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent


def on_files(files: Files, config: Any) -> Files:
    """Add the README as index.md, its links seen from docs/."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"\]\(docs/", "](", text)
    text = re.sub(r"\]\((?!https?:)([A-Z]+\.md)\)", r"](../\1)", text)  # CONTRIBUTING.md and CHANGELOG.md
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """`[text](../path)` becomes text (`path`): the repository has no address that a page could link to."""
    return re.sub(r"\[([^\]]+)\]\(\.\./([^)#]+)\)", r"\1 (`\2`)", markdown)
