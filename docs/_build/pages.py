"""A hook of mkdocs: the pages at the repository's root are pages of the site too, and links to them lead there."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = ("ARCHITECTURE.md", "SAFETY.md", "BENCHMARKS.md", "CHANGELOG.md")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add them."""
    for name in PAGES:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, **_others: object) -> str:
    """Turn links as they are in the repository into those of the site."""
    if page.file.src_uri in PAGES:
        return markdown.replace("](docs/", "](")
    return re.sub(rf"\]\((?:\.\./)+(?={'|'.join(map(re.escape, PAGES))})", "](", markdown)
