"""Three NATS servers and three nodes on this machine, from local binaries: what the demonstration and the benchmark start and kill."""

import contextlib
import http.client
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request


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


def is_ready(port):
    try:
        return request(port, "GET", "/readyz")[0] == 200
    except OSError:
        return False


def wait(what, come):
    until = time.monotonic() + 60
    while not (result := come()):
        if time.monotonic() > until:
            sys.exit(f"{what} does not come")
        time.sleep(0.05)
    return result


class Cluster:
    """Its nodes have these settings besides those that it needs."""

    def __init__(self, program, server, place, **settings):
        self.program, self.server, self.place, self.settings = program, server, place, settings
        self.server_ports = [free_ports(3) for _ in range(3)]
        self.node_ports = free_ports(3)
        self.processes = {}

    def start(self):
        for at in range(3):
            self.start_server(at)
        for at in range(3):
            self.start_node(at)
        for at in range(3):
            wait(f"node-{at}", lambda: is_ready(self.node_ports[at]))

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
        settings = {"CUCKOOD__JOURNAL__KIND": "nats", "CUCKOOD__NATS__SERVERS": servers, "CUCKOOD__CLUSTER__NODE": f"node-{at}"}
        self.start_program(f"node-{at}", self.node_ports[at], **settings, **self.settings)

    def start_program(self, name, port, **settings):
        settings["CUCKOOD__SERVER__LISTEN"] = f"127.0.0.1:{port}"
        settings["CUCKOOD__STORAGE__PATH"] = f"{self.place}/{name}"
        settings["CUCKOOD__STORAGE__BALLAST"] = "0"
        log = open(self.place / f"{name}.log", "ab")
        self.processes[name] = subprocess.Popen([self.program], env=settings, stdout=log, stderr=log)

    def kill(self, name):
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def signal(self, name, signal):
        self.processes[name].send_signal(signal)

    def stream(self):
        """What the server that leads the log says about its servers, if any does."""
        for at, (_, monitor, _) in enumerate(self.server_ports):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{monitor}/jsz?streams=true", timeout=2) as answer:
                    for account in json.load(answer).get("account_details", []):
                        for stream in account.get("stream_detail", []):
                            if stream["name"] == "cuckood" and stream["cluster"].get("leader") == f"nats-{at}":
                                return stream["cluster"]
            except (OSError, KeyError):
                continue
        return None

    def leader(self):
        return (self.stream() or {}).get("leader")

    def end(self):
        for name in list(self.processes):
            self.kill(name)


@contextlib.contextmanager
def running(program, server, **settings):
    """A cluster in a directory of its own. In the end nothing of it is left."""
    with tempfile.TemporaryDirectory() as place:
        cluster = Cluster(program, server, pathlib.Path(place), **settings)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.end()
