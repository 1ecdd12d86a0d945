"""redis-py against a running service: the port and an API key, or nothing, are the arguments."""

import sys

import redis

port = int(sys.argv[1])
key = sys.argv[2] if len(sys.argv) > 2 else None


def check(protocol):
    client = redis.Redis(port=port, password=key, protocol=protocol, decode_responses=True)
    name = f"py-{protocol}"
    client.delete(name, f"coupon:{name}")
    assert client.ping()
    filters = client.cf()
    # Much larger than its content: false positives are very unlikely.
    assert filters.create(name, 100_000, bucket_size=4, max_iterations=50, expansion=2)
    try:
        filters.create(name, 1000)
    except redis.ResponseError as error:
        assert str(error) == "item exists", error
    else:
        raise AssertionError("a filter was created twice")
    assert filters.add(name, "u1") == 1
    assert filters.addnx(name, "u1") == 0
    assert filters.addnx(name, "u2") == 1
    assert list(filters.insert(name, ["u3", "u4"])) == [1, 1]
    assert list(filters.insertnx(name, ["u4", "u5"])) == [0, 1]
    assert list(filters.insert(f"coupon:{name}", ["K1", "K2"], capacity=500)) == [1, 1]
    assert filters.exists(name, "u1") == 1
    assert filters.exists("nowhere", "u1") == 0
    assert list(filters.mexists(name, "u1", "u9")) == [1, 0]
    assert filters.count(name, "u1") == 1
    assert filters.delete(name, "u1") == 1
    assert filters.delete(name, "u1") == 0
    info = filters.info(name)
    inserted = info["Number of items inserted"] if isinstance(info, dict) else info.insertedNum
    assert inserted == 4, inserted

    pipeline = client.pipeline(transaction=False)
    for number in range(1000):
        pipeline.execute_command("CF.ADD", name, f"p{number}")
    pipeline.execute_command("CF.EXISTS", name, "p999")
    assert all(pipeline.execute())

    # As the documentation of redis-py has it: all pieces are taken first, and then loaded.
    binary = redis.Redis(port=port, password=key, protocol=protocol).cf()
    client.delete(f"{name}-copy")
    pieces, iterator = [], 0
    while True:
        iterator, data = binary.scandump(name, iterator)
        if iterator == 0:
            break
        pieces.append((iterator, data))
    for iterator, data in pieces:
        assert binary.loadchunk(f"{name}-copy", iterator, data) in (True, b"OK"), iterator
    assert list(filters.mexists(f"{name}-copy", "u2", "p999", "u9")) == [1, 1, 0]
    assert client.delete(f"{name}-copy") == 1

    assert client.exists(name, f"coupon:{name}", "nowhere") == 2
    assert client.type(name) == "MBbloomCF"
    assert set(client.scan_iter(match=f"{name}*")) == {name}
    assert f"coupon:{name}" in set(client.scan_iter(_type="MBbloomCF"))
    assert client.info()["role"] == "master"
    assert client.delete(name, f"coupon:{name}") == 2

    try:
        client.get("x")
    except redis.ResponseError as error:
        assert "unknown command" in str(error)
    else:
        raise AssertionError("GET is a command")
    client.close()


for protocol in (2, 3):
    check(protocol)
if key:
    for wrong, expected in ((None, redis.AuthenticationError), ("wrong", redis.AuthenticationError)):
        try:
            redis.Redis(port=port, password=wrong).execute_command("CF.EXISTS", "x", "y")
        except expected:
            pass
        else:
            raise AssertionError(f"a stranger with {wrong} is let in")
print("redis-py", redis.__version__, "ok")
