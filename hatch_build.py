"""What the build makes of the repository's address, which stands in docs/conf.py: hatchling calls.

Links and pictures of README.md are relative. PyPI has no files beside its page, so they become
absolute there, at this version's tag. While the address is empty, pictures are left out and links
become plain text: nothing on that page is broken.
"""

from __future__ import annotations

import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)]+)\)")


def address(conf: Path) -> str:
    """Return what the file sets as REPOSITORY; "" where there is no file or nothing is set."""
    text = conf.read_text(encoding="utf-8") if conf.exists() else ""
    found = re.search(r'^REPOSITORY = "(.*)"', text, re.MULTILINE)
    return found[1].rstrip("/") if found else ""


def absolute(text: str, repository: str, version: str) -> str:
    """Return Markdown whose relative links lead into the repository, at the version's tag."""

    def link(found: re.Match[str]) -> str:
        picture, says, where = found.groups()
        if not repository:
            return "" if picture else says
        return f"{picture}[{says}]({repository}/{'raw' if picture else 'blob'}/v{version}/{where})"

    return RELATIVE.sub(link, text)


class CustomMetadataHook(MetadataHookInterface):
    """Fill in the fields that pyproject.toml calls dynamic."""

    def update(self, metadata: dict) -> None:
        """Set the links and the text of the page on PyPI."""
        root, version = Path(self.root), metadata["version"]
        repository = address(root / "docs" / "conf.py")
        if repository:
            changes = f"{repository}/blob/v{version}/CHANGELOG.md"
            issues = f"{repository}/issues"
            metadata["urls"] = {"Repository": repository, "Changelog": changes, "Issues": issues}
        text = (root / "README.md").read_text(encoding="utf-8")
        text = absolute(text, repository, version)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
