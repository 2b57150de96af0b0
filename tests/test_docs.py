"""The code of the documentation runs, page by page, its links lead somewhere, and every public name is in it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


@pytest.mark.parametrize("page", [page for page in PAGES if "```python" in (DOCS / page).read_text()])
def test_the_code_of_a_page_runs_from_top_to_bottom(page):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)
    names: dict[str, object] = {}
    for n, block in enumerate(blocks):
        exec(compile(block, f"{page}, block {n}", "exec"), names)
    assert blocks


@pytest.mark.parametrize("page", PAGES)
def test_the_links_of_a_page_lead_to_files(page):
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (DOCS / page).read_text())
    assert [link for link in links if not ((DOCS / page).parent / link).exists()] == []


@pytest.mark.parametrize("module", ["data", "mesh", "nn", "operators", "ops", "train"])
def test_the_api_has_every_public_name(module):
    text = (ROOT / "src" / "flashheat" / module / "__init__.py").read_text()
    public = re.findall(r"^from (flashheat\.\S+\.\S+) import (\w+) as \2$", text, flags=re.MULTILINE)
    shown = re.findall(r"^::: (\S+)\.(\w+)$", (DOCS / "api" / f"{module}.md").read_text(), flags=re.MULTILINE)
    assert public
    assert sorted(public) == sorted(shown)
