#!/usr/bin/env python3
"""Prints the licences and notices of everything that the program contains and others have written.

These are the packages that are linked into it for this machine, as Cargo.lock has them, and the files under assets/. Whoever passes the
program on has to pass these on with it.
"""

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE")


def cargo(*arguments: str) -> str:
    command = ["cargo", arguments[0], "--locked", *arguments[1:]]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def linked() -> set[tuple[str, str]]:
    """Name and version of each package that is linked into the program. Those that only run while it is built are not."""
    lines = cargo("tree", "--package", "cuckood", "--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}")
    found = {tuple(line.split()[:2]) for line in lines.splitlines() if line.strip()}
    return {(name, version.removeprefix("v")) for name, version in found if name != "cuckood"}


def texts(folder: Path) -> list[str]:
    """The texts of the licences in a package."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name.upper().startswith(NAMES))
    return [path.read_text(errors="replace").strip() for path in files if path.suffix not in {".rs", ".html"}]


def main() -> None:
    packages = {(p["name"], p["version"]): p for p in json.loads(cargo("metadata", "--format-version", "1"))["packages"]}
    # Most packages share the text of the Apache licence, for example.
    holders: dict[str, list[str]] = defaultdict(list)
    for which in sorted(linked()):
        package = packages[which]
        title = f"{package['name']} {package['version']} ({package['license'] or 'see below'})"
        for text in texts(Path(package["manifest_path"]).parent) or ["No text of a licence comes with this package."]:
            holders[text].append(title)
    for folder in sorted((ROOT / "assets").iterdir()):
        for text in texts(folder):
            holders[text].append(f"assets/{folder.name}")
    if len(holders) < 10:
        sys.exit("third-party.py: too few packages were found")
    for text, titles in sorted(holders.items(), key=lambda entry: entry[1]):
        print("=" * 80, *titles, "-" * 80, text, "", sep="\n")


main()
