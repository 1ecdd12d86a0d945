"""Generates from the OpenAPI document what a package of this client contains besides `src/cuckood_client/*.py`."""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class GenerateHook(BuildHookInterface[Any]):
    """Runs before a wheel or a source distribution is built, and before an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Generate anew, but not from a source distribution: that comes without the document."""
        root = Path(self.root)
        document = root / "../../openapi/openapi.json"
        if document.exists():
            generate(root, document)


def generate(root: Path, document: Path) -> None:
    """Generate anew, and fail where the generator leaves anything out."""
    program = [sys.executable, "-m", "openapi_python_client", "generate"]
    settings = ["--config", str(root / "generator.yaml"), "--custom-template-path", str(root / "templates")]
    with tempfile.TemporaryDirectory() as place:
        plain = Path(place) / "openapi.json"
        plain.write_text(json.dumps(without_null_bodies(json.loads(document.read_text()))))
        paths = ["--path", str(plain), "--output-path", str(root / "src/cuckood_client/generated")]
        subprocess.run([*program, *paths, *settings, "--meta", "none", "--overwrite", "--fail-on-warning"], check=True)
    for path in (root / "src/cuckood_client/generated").rglob("*.py"):
        path.write_text(adapted(path.read_text()))


def without_null_bodies(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document without `null` for a body that can be absent: it means the same."""
    for operation in (operation for path in document["paths"].values() for operation in path.values()):
        for content in operation.get("requestBody", {}).get("content", {}).values():
            cases = content["schema"].get("oneOf", [])
            others = [case for case in cases if case.get("type") != "null"]
            if len(others) == 1:
                content["schema"] = others[0]
    return document


def adapted(source: str) -> str:
    """Return a generated module with `None` for what is absent.

    In a merge-patch `None` clears a field. There alone, an absent field is `UNSET`.
    """
    # Python 3.10 doesn't know Z.
    source = re.sub(r"(datetime\.fromisoformat\(.*)\)", r'\1.replace("Z", "+00:00"))', source)
    if "| None" in source or "class Unset" in source:
        return source
    source = re.sub(r"not isinstance\((.*?), Unset\)", r"\1 is not None", source)
    source = re.sub(r"isinstance\((.*?), Unset\)", r"\1 is None", source)
    source = re.sub(r"(from \.+types import .*?)UNSET, (File, )?Unset(?:, )?", r"\1\2", source)
    source = re.sub(r"from \.+types import \n", "", source).replace("import File, \n", "import File\n")
    return source.replace("| Unset", "| None").replace("UNSET", "None")
