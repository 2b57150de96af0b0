"""The code of the documentation runs, page by page, and its links lead somewhere."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(path.name for path in DOCS.glob("*.md"))


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
    assert [link for link in links if not (DOCS / link).exists()] == []
