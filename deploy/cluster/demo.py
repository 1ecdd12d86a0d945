#!/usr/bin/env python3
"""Three nodes over three NATS servers on this machine, from local binaries. Codes are redeemed through all nodes, each by several
buyers at once, while a node is killed, then the server that leads the log. Prints what happened. Arguments: the program, the server."""

import http.client
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

CODES = 1_500
BUYERS = 9


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def request(port, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json", **(headers or {})})
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None
    finally:
        connection.close()


def wait(what, is_so):
    until = time.monotonic() + 60
    while not is_so():
        if time.monotonic() > until:
            sys.exit(f"{what} does not come")
        time.sleep(0.05)


class Cluster:
    def __init__(self, program, server, place):
        self.program, self.server, self.place = program, server, place
        self.server_ports = [free_ports(3) for _ in range(3)]
        self.node_ports = free_ports(3)
        self.processes = {}

    def start_server(self, at):
        port, monitor, route = self.server_ports[at]
        routes = ", ".join(f"nats://127.0.0.1:{ports[2]}" for ports in self.server_ports)
        config = self.place / f"nats-{at}.conf"
        config.write_text(
            f"server_name: nats-{at}\nlisten: 127.0.0.1:{port}\nhttp: 127.0.0.1:{monitor}\n"
            f'jetstream {{ store_dir: "{self.place}/nats-{at}", sync_interval: always }}\n'
            f"cluster {{ name: demo, listen: 127.0.0.1:{route}, routes: [{routes}] }}\n"
        )
        log = open(self.place / f"nats-{at}.log", "ab")
        self.processes[f"nats-{at}"] = subprocess.Popen([self.server, "-c", config], stdout=log, stderr=log)

    def start_node(self, at):
        servers = ",".join(f"nats://127.0.0.1:{ports[0]}" for ports in self.server_ports)
        settings = {
            "CUCKOOD__SERVER__LISTEN": f"127.0.0.1:{self.node_ports[at]}",
            "CUCKOOD__STORAGE__PATH": f"{self.place}/node-{at}",
            "CUCKOOD__STORAGE__BALLAST": "0",
            "CUCKOOD__JOURNAL__KIND": "nats",
            "CUCKOOD__NATS__SERVERS": servers,
            "CUCKOOD__CLUSTER__NODE": f"node-{at}",
        }
        log = open(self.place / f"node-{at}.log", "ab")
        self.processes[f"node-{at}"] = subprocess.Popen([self.program], env=settings, stdout=log, stderr=log)

    def is_ready(self, at):
        try:
            return request(self.node_ports[at], "GET", "/readyz")[0] == 200
        except OSError:
            return False

    def kill(self, name):
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def leader(self):
        for _, monitor, _ in self.server_ports:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{monitor}/jsz?streams=true", timeout=2) as answer:
                    for account in json.load(answer).get("account_details", []):
                        for stream in account.get("stream_detail", []):
                            if stream["name"] == "cuckood":
                                return stream["cluster"]["leader"]
            except (OSError, KeyError):
                continue
        return None

    def end(self):
        for name in list(self.processes):
            self.kill(name)


class Shop:
    """Buyers, who all want the same codes, and try again elsewhere until they know."""

    def __init__(self, ports):
        self.ports, self.lock = ports, threading.Lock()
        self.winners, self.unknown, self.last_write, self.longest = {}, 0, time.monotonic(), 0.0

    def buy(self, buyer):
        for number in range(CODES):
            body = {"code": f"code-{number}", "reference": f"buyer-{buyer}-{number}"}
            attempt = buyer
            while True:
                try:
                    status, _ = request(self.ports[attempt % 3], "POST", "/v1/coupons/sale/redemptions", body)
                except (OSError, http.client.HTTPException):
                    status = 599
                if status < 500:
                    break
                attempt += 1
                with self.lock:
                    self.unknown += 1
                time.sleep(0.05)
            if status in (200, 201):
                with self.lock:
                    self.winners.setdefault(number, []).append(buyer)
                    now = time.monotonic()
                    self.longest, self.last_write = max(self.longest, now - self.last_write), now

    def wait_for(self, count):
        while len(self.winners) < count:
            time.sleep(0.02)

    def begin_round(self):
        with self.lock:
            self.longest = 0.0

    def report(self, what):
        print(f"{what}: the longest pause between two redemptions was {self.longest:.2f} s")


def main():
    program, server = sys.argv[1:]
    with tempfile.TemporaryDirectory() as place:
        cluster = Cluster(program, server, pathlib.Path(place))
        try:
            run(cluster)
        finally:
            cluster.end()


def run(cluster):
    for at in range(3):
        cluster.start_server(at)
    for at in range(3):
        cluster.start_node(at)
    for at in range(3):
        wait(f"node-{at}", lambda: cluster.is_ready(at))
    ports = cluster.node_ports
    print(f"three servers and three nodes are up: http://127.0.0.1:{ports[0]}, :{ports[1]}, :{ports[2]}")
    wait("the coupon", lambda: request(ports[0], "PUT", "/v1/coupons/sale", {"capacity": CODES})[0] in (200, 201))
    codes = [f"code-{number}" for number in range(CODES)]
    request(ports[0], "POST", "/v1/coupons/sale/codes", {"codes": codes})
    print(f"{CODES} codes are wanted by {BUYERS} buyers each, through all nodes")
    shop = Shop(ports)
    began = time.monotonic()
    threads = [threading.Thread(target=shop.buy, args=(buyer,), daemon=True) for buyer in range(BUYERS)]
    for thread in threads:
        thread.start()
    shop.wait_for(CODES // 5)
    shop.begin_round()
    cluster.kill("node-2")
    shop.wait_for(CODES * 2 // 5)
    shop.report("node-2 was killed")
    cluster.start_node(2)
    wait("node-2", lambda: cluster.is_ready(2))
    leader = cluster.leader()
    shop.wait_for(CODES * 3 // 5)
    shop.begin_round()
    cluster.kill(leader)
    shop.wait_for(CODES * 4 // 5)
    shop.report(f"{leader}, which led the log, was killed")
    for thread in threads:
        thread.join()
    once = sum(len(buyers) == 1 for buyers in shop.winners.values())
    print(f"{once} of {CODES} codes were redeemed exactly once, in {time.monotonic() - began:.1f} s; {shop.unknown} requests were sent again")
    strong = {"X-Cuckood-Consistency": "strong"}
    stats = [request(port, "GET", "/v1/coupons/sale", headers=strong)[1]["stats"]["redeemed"] for port in ports]
    print(f"the nodes count {stats[0]}, {stats[1]} and {stats[2]} redeemed codes")
    if once != CODES or stats != [CODES] * 3:
        sys.exit("that is wrong")


main()
