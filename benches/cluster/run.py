#!/usr/bin/env python3
"""Measures three nodes over three NATS servers that sync always, next to one local node that syncs, in alternating rounds. Needs wrk.

Arguments: the program, the server, and the parts to run (all by default):
  adds         durable adds of 1 and 1,000 users at 50 connections, of 1 user at 384
  redemptions  each code once, at 50 connections and at one
  reads        strong reads next to plain ones, at 50 connections and at one
  killed       pause of writes when the log's leader is killed, and how much of it is NATS' election
  stopped      the same for SIGSTOP
  wiped        startup of an empty node
Prints the median of each and its range. The environment may set ROUNDS, SECONDS_EACH, FAULTS, WIPES and USERS."""

import datetime
import functools
import itertools
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from statistics import median

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "deploy" / "cluster"))
sys.dont_write_bytecode = True
from machines import free_ports, is_ready, request, running, wait

ROUNDS, SECONDS_EACH, FAULTS, WIPES, USERS = (
    int(os.environ.get(name, default)) for name, default in {"ROUNDS": 5, "SECONDS_EACH": 5, "FAULTS": 10, "WIPES": 5, "USERS": 10_000_000}.items()
)
# More redemptions than one node has taken.
CODES = 60_000 * SECONDS_EACH
STRONG = {"X-Cuckood-Consistency": "strong"}
UNITS = {"us": 0.001, "ms": 1, "s": 1_000, "m": 60_000}


def rounded(figures, digits=2):
    return f"{median(figures):.{digits}f} ({min(figures):.{digits}f} to {max(figures):.{digits}f})"


def put(port, path, body):
    status, answer = request(port, "PUT", path, body)
    if status not in (200, 201):
        sys.exit(f"{path}: {answer}")


def load(ports, connections=50, **what):
    """Requests per second, and the latency that half, and 99 of 100, are within, in milliseconds."""
    environment = os.environ | what | {"PORTS": " ".join(map(str, ports))}
    connections += -connections % len(ports)
    command = ["wrk", f"-t{len(ports)}", f"-c{connections}", f"-d{SECONDS_EACH}s", "--timeout", "20s", "--latency", "-s", "load.lua"]
    command.append(f"http://127.0.0.1:{ports[0]}")
    said = subprocess.run(command, cwd=HERE, env=environment, check=True, capture_output=True, text=True).stdout
    if "Non-2xx" in said or "Socket errors" in said:
        sys.exit(f"{what}: {[request(port, 'GET', '/readyz') for port in ports]} {said}")
    latencies = (re.search(rf"{percent}%\s+([\d.]+)([a-z]+)", said).groups() for percent in (50, 99))
    return float(re.search(r"Requests/sec:\s+([\d.]+)", said)[1]), *(float(number) * UNITS[unit] for number, unit in latencies)


def compare(title, items, contestants):
    """Contestants take turns. Each is told the round; the first is what the others are compared with."""
    results = [[contestant(number) for contestant in contestants.values()] for number in range(ROUNDS)]
    print(title)
    for at, name in enumerate(contestants):
        rate, half, most = (median(result[at][figure] for result in results) for figure in range(3))
        line = f"  {name:<26}{rate * items:>12,.0f}/s   p50 {half:>7.2f}   p99 {most:>7.2f} ms"
        ratios = f"   {rounded([result[at][0] / result[0][0] for result in results])} x" if at else ""
        print(line + ratios, flush=True)


def import_lines(place, port, path, lines):
    file = place / "lines"
    file.write_text("".join(lines))
    began = time.monotonic()
    url = f"http://127.0.0.1:{port}{path}/imports"
    subprocess.run(["curl", "-sfS", "-o", place / "answer", "-T", file, "-X", "POST", "-H", "Content-Type: text/plain", url], check=True)
    return time.monotonic() - began


def redeem(place, ports, number, connections=50):
    """Redeems codes of a coupon that is made for it, once every node has it."""
    coupon, each = f"sale-{ports[0]}-{len(ports)}-{connections}-{number}", CODES // len(ports)
    put(ports[0], f"/v1/coupons/{coupon}", {"capacity": CODES})
    import_lines(place, ports[0], f"/v1/coupons/{coupon}", (f"c{code:09}\n" for code in range(CODES + 1)))
    for port in ports:
        request(port, "GET", f"/v1/coupons/{coupon}", headers=STRONG)
    return load(ports, connections, KIND="redeem", COUPON=coupon, CODES=str(each))


def groups(cluster, local):
    return {"local node": [local], "one node of three": cluster.node_ports[:1], "spread over three nodes": cluster.node_ports}


def fill(cluster, local):
    for name, ports in list(groups(cluster, local).items())[:2]:
        put(ports[0], "/v1/campaigns/bench", {"capacity": 2_000_000})
        took = import_lines(cluster.place, ports[0], "/v1/campaigns/bench", (f"u{user:015}\n" for user in range(1_000_000)))
        print(f"import of a million lines, {name}: {took:.2f} s")
    for port in cluster.node_ports:
        request(port, "GET", "/v1/campaigns/bench", headers=STRONG)


def adds(cluster, local):
    def each(*connections, **what):
        return {name: lambda _, ports=ports: load(ports, *connections, KIND="add", **what) for name, ports in groups(cluster, local).items()}

    fill(cluster, local)
    compare("durable adds of one user", 1, each())
    compare("the same at 384 connections", 1, each(384))
    compare("durable adds of 1 000 users, in users", 1_000, each(ITEMS="1000"))


def redemptions(cluster, local):
    def each(connections):
        return {name: functools.partial(redeem, cluster.place, ports, connections=connections) for name, ports in groups(cluster, local).items()}

    compare("redemptions, each code once", 1, each(50))
    compare("the same at one connection to each node", 1, each(1))


def reads(cluster, local):
    fill(cluster, local)
    for name, ports in list(groups(cluster, local).items())[1:]:
        plain = lambda _: load(ports, KIND="check")
        strong = lambda _: load(ports, KIND="check", CONSISTENCY="strong")
        alone = lambda _: load(ports, 1, KIND="check", CONSISTENCY="strong")
        compare(f"checks of one user, {name}", 1, {"plain": plain, "strong": strong, "strong, one connection": alone})


class Clients:
    """Writers and a reader at each node, which note when they were answered."""

    WRITERS = 2

    def __init__(self, ports):
        self.ports, self.refused, self.ended = ports, 0, False
        self.written, self.read = ([[] for _ in ports] for _ in range(2))
        self.threads = [threading.Thread(target=self.ask, args=(at, at_node)) for at in range(len(ports)) for at_node in range(self.WRITERS + 1)]

    def ask(self, at, number):
        answers, path = (self.written, "/v1/campaigns/outage/users") if number else (self.read, "/v1/campaigns/outage/users/check")
        for user in itertools.count():
            if self.ended:
                return
            try:
                status, _ = request(self.ports[at], "POST", path, {"users": [f"{at}-{number}-{user}"]})
            except OSError:
                status = 599
            if status == 200:
                answers[at].append(time.monotonic())
            elif not number:
                self.refused += 1
            # They leave the processors to the measured processes.
            time.sleep(0.01)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.ended = True
        for thread in self.threads:
            thread.join()


def longest_pause(answers, since):
    """How long the longest pause between two answers was, and when it ended."""
    times = sorted(at for at in answers if at >= since)
    return max((later - earlier, later) for earlier, later in itertools.pairwise(times))


def is_whole(cluster):
    replicas = (cluster.stream() or {}).get("replicas", [])
    return len(replicas) == 2 and all(replica["current"] and not replica.get("offline") for replica in replicas)


def elected(cluster, since):
    """When a server first logged after a moment that it leads the stream; moments are of the monotonic clock."""
    offset = time.time() - time.monotonic()
    found = []
    for log in cluster.place.glob("nats-*.log"):
        for said in re.findall(r"(\d{4}/\d\d/\d\d [\d:.]+) \[INF\] JetStream cluster new stream leader for '\$G > cuckood'", log.read_text()):
            at = datetime.datetime.strptime(said, "%Y/%m/%d %H:%M:%S.%f").timestamp() - offset
            found += [at] if at > since else []
    return min(found, default=None)


def outages(cluster, what, fail, recover):
    put(cluster.node_ports[0], "/v1/campaigns/outage", {"capacity": 1_000_000})
    for port in cluster.node_ports:
        request(port, "GET", "/v1/campaigns/outage", headers=STRONG)
    elections, anywhere, slowest, after, reads = [], [], [], [], []
    with Clients(cluster.node_ports) as clients:
        for _ in range(FAULTS):
            wait("the third server", lambda: is_whole(cluster))
            time.sleep(2)
            leader, failed = wait("a leader", cluster.leader), time.monotonic()
            fail(leader)
            election = wait("an election", lambda: elected(cluster, failed))
            # Writes in flight are still answered, and a node may be the last to continue.
            enough = lambda times: sum(at > election for at in times[-100:]) >= 50
            wait("the new leader", lambda: all(map(enough, clients.written)))
            pauses = [longest_pause(times, failed - 1) for times in clients.written]
            elections.append(election - failed)
            anywhere.append(longest_pause(itertools.chain(*clients.written), failed - 1)[0])
            slowest.append(max(pause for pause, _ in pauses))
            after.append(max(end for _, end in pauses) - election)
            reads.append(max(longest_pause(times, failed - 1)[0] for times in clients.read))
            recover(leader)
    print(f"the log's leader is {what}, {FAULTS} times: seconds")
    print(f"  until a server logs that it leads            {rounded(elections)}")
    print(f"  between two writes, through any node         {rounded(anywhere)}")
    print(f"  between two writes, through the slowest node {rounded(slowest)}")
    print(f"  from the election to the slowest node's end  {rounded(after)}")
    print(f"  between two reads of the slowest node        {rounded(reads)}; {clients.refused} reads failed", flush=True)


def metric(port, name):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        found = re.search(rf"^cuckood_{name} (\S+)$", answer.read().decode(), re.M)
    return float(found[1]) if found else 0.0


def wiped(cluster, _):
    ports = cluster.node_ports
    put(ports[0], "/v1/campaigns/large", {"capacity": USERS})
    took = import_lines(cluster.place, ports[0], "/v1/campaigns/large", (f"u{user:015}\n" for user in range(USERS)))
    print(f"import of {USERS:,} lines through one node: {took:.1f} s")
    position = request(ports[0], "GET", "/v1/cluster")[1]["position"]
    wait("a shared snapshot", lambda: metric(ports[0], "cluster_snapshot_position") >= position)
    clock, own = [], []
    for _ in range(WIPES):
        cluster.kill("node-2")
        shutil.rmtree(cluster.place / "node-2")
        began = time.monotonic()
        cluster.start_node(2)
        wait("the wiped node", lambda: is_ready(ports[2]))
        clock.append(time.monotonic() - began)
        own.append(metric(ports[2], "cluster_bootstrap_seconds"))
        items = request(ports[2], "GET", "/v1/campaigns/large", headers=STRONG)[1]["stats"]["items"]
        if items < USERS * 0.999 or not own[-1]:
            sys.exit(f"the wiped node has {items} items, and says that it took {own[-1]} s")
    print(f"a wiped node begins with them, {WIPES} times: {rounded(clock)} s until it is ready; cuckood_cluster_bootstrap_seconds {rounded(own)}")


def killed(cluster, _):
    outages(cluster, "killed", cluster.kill, lambda leader: cluster.start_server(int(leader[-1])))


def stopped(cluster, _):
    # Until the others have gone on, and a while longer.
    outages(cluster, "stopped", lambda leader: cluster.signal(leader, signal.SIGSTOP), lambda leader: cluster.signal(leader, signal.SIGCONT))


def main():
    program, server, *chosen = sys.argv[1:]
    parts = {part.__name__: part for part in (adds, redemptions, reads, killed, stopped, wiped)}
    if unknown := set(chosen) - set(parts):
        sys.exit(f"unknown parts: {' '.join(unknown)}; there are {' '.join(parts)}")
    # So that everything is ended and removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    version = subprocess.run([server, "--version"], check=True, capture_output=True, text=True).stdout.strip()
    print(f"{version}, three servers with sync_interval always, three nodes, a local node and the load share {os.cpu_count()} processors and a disk,")
    print(f"so the ratios to the local node overstate what the cluster costs. Medians of {ROUNDS} rounds of {SECONDS_EACH} s, and the ranges.")
    for part in chosen or parts:
        # A wiped node starts with a shared snapshot of all that was imported.
        with running(program, server, CUCKOOD__CLUSTER__SNAPSHOT_INTERVAL="10s" if part == "wiped" else "30m") as cluster:
            [local] = free_ports(1)
            cluster.start_program("local", local)
            wait("the local node", lambda: is_ready(local))
            parts[part](cluster, local)


main()
