#!/usr/bin/env python3
"""Compares a translated document, the second argument, with its original, the first: the same headings, commands, names in code, links and
figures, section by section. What is said in words is not compared."""

import re
import sys
from collections import Counter
from pathlib import Path

BLOCK = re.compile(r"^(?P<mark><!-- not run -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)]+)\)")
CODE = re.compile(r"`([^`]+)`")
# Digits, with a narrow or plain space between thousands.
FIGURE = re.compile(r"(?<![\w.-])\d{1,3}(?:[  ]\d{3})+(?!\d)|(?<![A-Za-z\d.-])\d+(?:\.\d+)?")


def commands(text: str) -> list[str]:
    """A block without the words that may be translated: comments, but for promised answers."""
    kept = []
    for line in text.splitlines():
        if re.match(r"# ?[^ {]", line):
            continue
        kept.append(re.sub(r"\s+# .*", "", line).rstrip() if not line.startswith("#") else line)
    return kept


def anchors(document: str) -> set[str]:
    """The names under which a document's headings can be linked to."""
    titles = re.findall(r"^#+ (.*)$", BLOCK.sub("", document), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def facts(section: str, own: set[str]) -> dict[str, object]:
    """What a section has that words don't change."""
    prose = BLOCK.sub("", section)
    targets = [link["target"] for link in LINK.finditer(prose)]
    missing = [target for target in targets if target.startswith("#") and target[1:] not in own]
    if missing:
        sys.exit(f"there is no heading for {missing}")
    words = CODE.sub("", LINK.sub(lambda link: link[0].split("](")[0], prose))
    return {
        "headings": re.findall(r"^#+", prose, re.M),
        "blocks": [(bool(b["mark"]), b["language"], commands(b["text"])) for b in BLOCK.finditer(section)],
        "rows of tables": len(re.findall(r"^\|", prose, re.M)),
        "items of lists": len(re.findall(r"^- ", prose, re.M)),
        "code": Counter(CODE.findall(prose)),
        "links": Counter("#" if target.startswith("#") else target for target in targets),
        "figures": Counter(re.sub(r"\s", "", figure) for figure in FIGURE.findall(words)),
    }


def told(one: object, other: object) -> object:
    """What one of two facts has beyond the other, as far as that can be told."""
    if isinstance(one, Counter) and isinstance(other, Counter):
        return dict(one - other)
    if isinstance(one, list) and isinstance(other, list):
        return [item for item in one if item not in other]
    return one


def sections(document: str) -> list[str]:
    return re.split(r"^(?=## )", document, flags=re.M)


def main() -> None:
    names = sys.argv[1:3]
    original, translated = (Path(name).read_text() for name in names)
    # Each links to the other, above everything else.
    switch = re.compile(r"^\[English\]\(README\.md\).*\n|^English \| .*\n", re.M)
    if not all(switch.search(document) for document in (original, translated)):
        sys.exit("the documents don't link to each other")
    pairs = [[switch.sub("", part) for part in sections(document)] for document in (original, translated)]
    if len(pairs[0]) != len(pairs[1]):
        sys.exit(f"{len(pairs[0])} sections in {names[0]}, {len(pairs[1])} in {names[1]}")
    failed = False
    for one, other in zip(*pairs, strict=True):
        expected, found = facts(one, anchors(original)), facts(other, anchors(translated))
        for what in expected:
            if expected[what] != found[what]:
                failed = True
                title, (a, b) = one.splitlines()[0], (expected[what], found[what])
                print(f"{title}: {what} differ:\n  {names[0]}: {told(a, b)}\n  {names[1]}: {told(b, a)}", file=sys.stderr)
    print(f"{names[1]}: {len(pairs[0])} sections compared")
    sys.exit(failed)


main()
