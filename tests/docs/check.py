#!/usr/bin/env python3
"""Runs the examples of the documents named as arguments, each document against a fresh service.

A block marked `sh` runs in bash, one marked `python` with the Python client, one marked `js` in Node with the TypeScript client, which
clients/run.sh installs. A comment below a command that begins with `# {` is the answer that the reader is promised: the last JSON that the command prints must
equal it, but for times, ids and durations. A block below the line `<!-- not run -->` is left out. CUCKOOD names the program,
CUCKOOD_CLIENT the folder of the TypeScript client.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("CUCKOOD", ROOT / "target/debug/cuckood")).resolve()
CLIENT = Path(os.environ.get("CUCKOOD_CLIENT", ROOT / "clients/typescript")).resolve()
ADDRESS = "http://127.0.0.1:8080"

# Values that differ from run to run.
VOLATILE = {"id", "request_id", "created_at", "redeemed_at", "cancelled_at", "expires_at", "started_at", "seconds", "at"}

NOT_RUN = "<!-- not run -->"
BLOCK = re.compile(r"^(?P<mark><!-- not run -->\n+)?```(?P<language>sh|python|js)\n(?P<text>.*?)^```$", re.M | re.S)


class Stale(Exception):
    """A document promises what is not so."""


def jsons(text: str) -> list[Any]:
    """The JSON objects in a text, whatever stands between them."""
    found, decoder, at = [], json.JSONDecoder(), 0
    while (at := text.find("{", at)) >= 0:
        try:
            value, at = decoder.raw_decode(text, at)
            found.append(value)
        except json.JSONDecodeError:
            at += 1
    return found


def alike(promised: Any, found: Any, key: str = "") -> bool:
    """Whether two values are equal, but for what differs from run to run."""
    if isinstance(promised, dict) and isinstance(found, dict):
        return promised.keys() == found.keys() and all(alike(promised[k], found[k], k) for k in promised)
    if isinstance(promised, list) and isinstance(found, list):
        return len(promised) == len(found) and all(map(alike, promised, found))
    return key in VOLATILE or promised == found


def steps(block: str) -> Iterator[tuple[str, Any]]:
    """The commands of a block, each with the answer that is promised."""
    lines, commands = block.splitlines(), []
    while lines:
        line = lines.pop(0)
        if not line.startswith("# {"):
            commands.append(line)
            continue
        promised = line[2:]
        while not jsons(promised) and lines and lines[0].startswith("#"):
            promised += lines.pop(0)[1:]
        yield "\n".join(commands), json.loads(promised)
        commands = []
    if commands:
        yield "\n".join(commands), None


class Service:
    """A service with a data directory of its own."""

    def __init__(self, place: Path) -> None:
        environment = {
            "CUCKOOD__SERVER__LISTEN": "127.0.0.1:0",
            "CUCKOOD__STORAGE__PATH": str(place / "data"),
            "CUCKOOD__LIMITS__MEMORY": "512MiB",
            "CUCKOOD__LOG__FORMAT": "json",
        }
        self.log = place / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([PROGRAM, "serve"], env={**os.environ, **environment}, stderr=log)
        self.url = "http://" + self._address()
        subprocess.run(
            ["curl", "-sf", "--retry", "100", "--retry-delay", "1", "--retry-all-errors", f"{self.url}/readyz"],
            check=True,
            stdout=subprocess.DEVNULL,
        )

    def _address(self) -> str:
        with self.log.open() as lines:
            while self.process.poll() is None:
                line = lines.readline()
                if line.endswith("\n") and (address := json.loads(line).get("fields", {}).get("address")):
                    return str(address)
        raise Stale(f"the service has ended: {self.log.read_text()}")

    def stop(self) -> None:
        self.process.terminate()
        if self.process.wait() != 0:
            raise Stale(f"the service failed: {self.log.read_text()}")


class Shell:
    """One bash for all blocks of a document, so that variables stay."""

    def __init__(self, place: Path, url: str) -> None:
        path = f"{PROGRAM.parent}:{os.environ['PATH']}"
        self.process = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=place,
            env={**os.environ, "PATH": path, "CUCKOOD_URL": url},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, commands: str) -> str:
        end = "END-OF-STEP"
        commands = commands.replace("curl ", "curl -sS ")
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"set -e\n{commands}\nset +e; echo; echo {end}\n")
        self.process.stdin.flush()
        output = []
        for line in self.process.stdout:
            if line.rstrip("\n") == end:
                return "".join(output)
            output.append(line)
        raise Stale(f"a command failed:\n{commands}\n{''.join(output)}")


def run_program(language: str, text: str, place: Path) -> None:
    """Runs a program that uses a client."""
    if language == "python":
        command = [sys.executable, "-"]
    else:
        modules = place / "node_modules"
        modules.mkdir(exist_ok=True)
        link = modules / "cuckood-client"
        if not link.is_symlink():
            link.symlink_to(CLIENT)
        command = ["node", "--input-type=module", "-"]
    done = subprocess.run(command, input=text, cwd=place, text=True, capture_output=True)
    if done.returncode != 0:
        raise Stale(f"the {language} example failed:\n{text}\n{done.stdout}{done.stderr}")


def check(document: Path, place: Path) -> int:
    """Runs the blocks of a document; how many."""
    service = Service(place)
    shell, count = Shell(place, service.url), 0
    try:
        for block in BLOCK.finditer(document.read_text()):
            if block["mark"]:
                continue
            text = block["text"].replace(ADDRESS, service.url)
            if block["language"] != "sh":
                run_program(block["language"], text, place)
            else:
                for commands, promised in steps(text):
                    output = shell.run(commands)
                    if promised is not None:
                        found = jsons(output)
                        if not found or not alike(promised, found[-1]):
                            raise Stale(f"{commands}\npromised: {json.dumps(promised)}\nanswered: {output.strip()}")
            count += 1
    finally:
        assert shell.process.stdin
        shell.process.stdin.close()
        shell.process.wait()
        service.stop()
    return count


def holds(name: str) -> bool:
    """Whether a document's examples do what it says."""
    place = Path(tempfile.mkdtemp())
    try:
        count = check(ROOT / name, place)
        print(f"{name}: {count} blocks ran")
        # A document whose blocks are no longer found must not pass.
        return count > 0
    except Stale as stale:
        print(f"{name}: {stale}", file=sys.stderr)
        return False
    finally:
        shutil.rmtree(place)


def main() -> None:
    sys.exit(not all([holds(name) for name in sys.argv[1:]]))


main()
