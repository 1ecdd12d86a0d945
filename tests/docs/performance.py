#!/usr/bin/env python3
"""Checks that the README's table of performance agrees with docs/PERFORMANCE.md: one row there has the same name and every figure."""

import sys
from pathlib import Path


def rows(document: str) -> list[list[str]]:
    """The cells of all table rows."""
    lines = document.splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]


def main() -> None:
    section = Path("README.md").read_text().partition("## Performance\n")[2].partition("\n## ")[0]
    promised, measured = rows(section), rows(Path("docs/PERFORMANCE.md").read_text())
    stale = [row for row in promised if not any(row[0] == found[0] and {*row} - {""} <= {*found} for found in measured)]
    for row in stale:
        print(f"README.md: docs/PERFORMANCE.md has no such row: {row}", file=sys.stderr)
    print(f"README.md: {len(promised)} rows compared with docs/PERFORMANCE.md")
    sys.exit(bool(stale) or len(promised) < 2)


main()
