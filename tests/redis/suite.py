"""The tests of CF.* commands that redis-py's source package contains, against a running service.

The arguments are the port and the folder of the unpacked package. Exits with 1 if other tests fail than those of EXPECTED, or if docs/REDIS.md
does not explain one of these.
"""

import sys
from pathlib import Path

import pytest
import redis
import redis.asyncio

# Tests that fail, and the words in docs/REDIS.md that say why.
EXPECTED = {"test_create": "`GET`, `SET` and all commands of other types"}

# Further tests that use filters, besides those of the name `test_cf_…`.
OTHERS = {"test_reserve", *EXPECTED}

# Teardowns send FLUSHDB, which is replaced here.
REPLACED = "`FLUSHDB`, `FLUSHALL`"

FILES = ["tests/test_bloom.py", "tests/test_asyncio/test_bloom.py"]


def flush(client):
    for key in client.scan_iter():
        client.unlink(key)


async def flush_async(client):
    async for key in client.scan_iter():
        await client.unlink(key)


class Outcomes:
    """Keeps the tests that use filters, and their outcomes."""

    def __init__(self):
        self.passed, self.failed = set(), {}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if item.name.startswith("test_cf") or item.originalname in OTHERS]

    def pytest_runtest_logreport(self, report):
        name = report.nodeid.split("::")[-1].split("[")[0]
        if report.failed:
            self.failed[name] = report.longreprtext
        elif report.when == "call" and report.passed:
            self.passed.add(report.nodeid)


def main(port, folder):
    redis.Redis.flushdb, redis.asyncio.Redis.flushdb = flush, flush_async
    url = f"redis://127.0.0.1:{port}"
    faults = []
    for protocol in (2, 3):
        outcomes = Outcomes()
        options = [f"--redis-url={url}/0", f"--redis-mod-url={url}", f"--protocol={protocol}", "-qq", "--tb=no", "-p", "no:cacheprovider"]
        files = [str(folder / file) for file in FILES]
        pytest.main([f"--rootdir={folder}", *options, *files], plugins=[outcomes])
        print(f"redis-py {redis.__version__}, RESP{protocol}: {len(outcomes.passed)} passed, {len(outcomes.failed)} failed")
        faults += [f"RESP{protocol}: {name}: {text}" for name, text in outcomes.failed.items() if name not in EXPECTED]
        faults += [f"RESP{protocol}: {name} passes" for name in EXPECTED if name not in outcomes.failed]
        if not outcomes.passed:
            faults.append(f"RESP{protocol}: no test passed")
    documented = Path("docs/REDIS.md").read_text()
    faults += [f"docs/REDIS.md does not have {words}" for words in {REPLACED, *EXPECTED.values()} if words not in documented]
    print("\n".join(faults) or "suite ok")
    return bool(faults)


sys.exit(main(sys.argv[1], Path(sys.argv[2])))
