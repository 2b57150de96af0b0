"""What the site needs beside docs/: the pages of the repository's root, and the files that pages link to.

The links stay as they serve in the repository. Here each is led to the place where the site has that file; what exists
nowhere is left as it is, and the strict build refuses it.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent
ROOT_PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md"}
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add the root's pages, and every linked file outside docs/; of a linked folder all files and a list of them."""
    pages = {f"docs/{page.src_uri}": page.content_string for page in files.documentation_pages()}
    pages |= {name: (ROOT / name).read_text(encoding="utf-8") for name in ROOT_PAGES}
    for name, uri in ROOT_PAGES.items():
        files.append(File.generated(config, uri, content=pages[name]))
    for target in sorted({target for name, text in pages.items() for target in _outside(name, text)}):
        names = sorted(p.name for p in (ROOT / target).iterdir()) if (ROOT / target).is_dir() else []
        if names:
            text = f"# {target}\n\n" + "".join(f"- [{name}]({name})\n" for name in names)
            files.append(File.generated(config, f"{target}/index.md", content=text))
        for path in [f"{target}/{name}" for name in names] or [target]:
            if files.get_file_from_path(path) is None:
                files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead each link to a file of the repository to that file on the site."""
    uri = page.file.src_uri
    source = {uri: name for name, uri in ROOT_PAGES.items()}.get(uri, f"docs/{uri}")

    def moved(match: re.Match[str]) -> str:
        target = _target(source, match[1])
        if not (ROOT / target).exists():
            return match[0]
        place = target.removeprefix("docs/") if target.startswith("docs/") else ROOT_PAGES.get(target, target)
        place += "/index.md" if (ROOT / target).is_dir() else ""
        return f"]({posixpath.relpath(place, posixpath.dirname(uri) or '.')}"

    return LINK.sub(moved, markdown)


def _outside(source: str, text: str) -> list[str]:
    """The existing files and folders outside docs/ that a page links to, but for the root's pages."""
    targets = [_target(source, link) for link in LINK.findall(text)]
    return [t for t in targets if (ROOT / t).exists() and not t.startswith("docs/") and t not in ROOT_PAGES]


def _target(source: str, link: str) -> str:
    """Where a link of a page leads, from the repository's root."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
