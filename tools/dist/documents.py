#!/usr/bin/env python3
"""Copies the documents that a package contains: documents.py PLACE FILE[=NAME]….

The files are other files that the package has, with their names in it if these differ. Links follow them. Links to files that the
package does not have become plain text; a link to a file that does not exist is an error."""

import os
import re
import shutil
import sys
from pathlib import Path

LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)]*)?\)")
DOCUMENTS = ("README.md", "README.zh-CN.md", "CHANGELOG.md", "SECURITY.md", "docs/*.md", "docs/pictures/*")


def relink(document: str, source: str, names: dict[str, str]) -> str:
    """The text of a document with the links that hold in the package."""

    def replace(link: re.Match[str]) -> str:
        if re.match(r"[a-z]+:", link["target"]):
            return link[0]
        target = os.path.normpath(os.path.join(os.path.dirname(source), link["target"]))
        if target not in names:
            return link["text"] if os.path.exists(target) else sys.exit(f"{source}: there is no {target}")
        path = os.path.relpath(names[target], os.path.dirname(names[source]) or ".")
        return f"[{link['text']}]({path}{link['anchor'] or ''})"

    return LINK.sub(replace, document)


def main() -> None:
    place = Path(sys.argv[1])
    names = {str(path): str(path) for pattern in DOCUMENTS for path in sorted(Path().glob(pattern))}
    names |= {file: name or file for file, _, name in (argument.partition("=") for argument in sys.argv[2:])}
    for source, name in names.items():
        copy = place / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".md"):
            copy.write_text(relink(Path(source).read_text(), source, names))
        else:
            shutil.copyfile(source, copy)


main()
