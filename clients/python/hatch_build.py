"""Generates from the OpenAPI document what a package of this client contains besides `src/cuckood_client/*.py`."""

import subprocess
import sys
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
    paths = ["--path", str(document), "--output-path", str(root / "src/cuckood_client/generated")]
    settings = ["--config", str(root / "generator.yaml"), "--custom-template-path", str(root / "templates")]
    subprocess.run([*program, *paths, *settings, "--meta", "none", "--overwrite", "--fail-on-warning"], check=True)
