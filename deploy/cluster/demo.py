#!/usr/bin/env python3
"""Three nodes over three NATS servers on this machine, from local binaries. Codes are redeemed through all nodes, each by several
buyers at once, while a node is killed, then the server that leads the log. Prints what happened. Arguments: the program, the server."""

import http.client
import sys
import threading
import time

sys.dont_write_bytecode = True
from machines import is_ready, request, running, wait

CODES = 1_500
BUYERS = 9


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
    with running(program, server) as cluster:
        run(cluster)


def run(cluster):
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
    wait("node-2", lambda: is_ready(ports[2]))
    leader = wait("a leader", cluster.leader)
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
