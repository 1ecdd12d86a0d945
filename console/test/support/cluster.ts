/** Several nodes over real NATS servers on this machine, in a folder that is thrown away. */

import { execFileSync, spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { openSync } from "node:fs";
import { mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";

const PROGRAM = process.env["CUCKOOD"] ?? "../target/debug/cuckood";

/** How long a node may take until it is ready. */
const PATIENCE_MILLISECONDS = 60_000;

export interface Cluster {
  /** The nodes' addresses, in order: node-1, node-2 and so on. */
  readonly urls: readonly string[];
  /** Kills a node or a server, by its name. */
  kill(name: string): Promise<void>;
  end(): Promise<void>;
}

/** Below the ports that Linux chooses itself: nobody is given one by chance before it is bound. tests/cluster has those below. */
const FIRST_PORT = 16_000;
const PORT_COUNT = 4_000;

function isFree(port: number): Promise<boolean> {
  const server = createServer();
  return new Promise((resolve) => {
    server.once("error", () => resolve(false));
    server.listen(port, "127.0.0.1", () => server.close(() => resolve(true)));
  });
}

/** Ports at which nobody listens. */
async function freePorts(count: number): Promise<number[]> {
  const ports = [];
  for (let at = 0; at < PORT_COUNT && ports.length < count; at += 1) {
    const port = FIRST_PORT + ((process.pid + at) % PORT_COUNT);
    if (await isFree(port)) {
      ports.push(port);
    }
  }
  return ports;
}

export async function startCluster(size: number): Promise<Cluster> {
  const server = execFileSync("../tests/cluster/server.sh", { encoding: "utf8" }).trim();
  const folder = await mkdtemp(join(tmpdir(), "cuckood-cluster-"));
  const ports = await freePorts(3 * size);
  const [clients, routes, nodes] = [0, 1, 2].map((kind) => ports.slice(kind * size, (kind + 1) * size)) as [number[], number[], number[]];
  const running = new Map<string, ChildProcess>();

  const start = (name: string, program: string, options: readonly string[], env: Record<string, string>) => {
    const log = openSync(join(folder, `${name}.log`), "a");
    running.set(name, spawn(program, options, { env: { ...process.env, ...env }, stdio: ["ignore", log, log] }));
  };
  const kill = async (name: string) => {
    const child = running.get(name);
    running.delete(name);
    if (child !== undefined && child.exitCode === null) {
      const ended = once(child, "exit");
      child.kill("SIGKILL");
      await ended;
    }
  };
  const end = async () => {
    await Promise.all([...running.keys()].map(kill));
    await rm(folder, { recursive: true, force: true });
  };

  for (const [at, port] of clients.entries()) {
    const name = `nats-${at + 1}`;
    const others = routes.map((route) => `nats://127.0.0.1:${route}`).join(", ");
    const config = `server_name: ${name}
listen: 127.0.0.1:${port}
jetstream { store_dir: "${join(folder, name)}", sync_interval: always }
cluster { name: console, listen: 127.0.0.1:${routes[at]}, routes: [${others}] }
`;
    await writeFile(join(folder, `${name}.conf`), config);
    start(name, server, ["-c", join(folder, `${name}.conf`)], {});
  }
  for (const [at, port] of nodes.entries()) {
    const name = `node-${at + 1}`;
    start(name, PROGRAM, ["serve"], {
      CUCKOOD__SERVER__LISTEN: `127.0.0.1:${port}`,
      CUCKOOD__STORAGE__PATH: join(folder, name),
      CUCKOOD__STORAGE__BALLAST: "0",
      CUCKOOD__LIMITS__MEMORY: "256MiB",
      CUCKOOD__JOURNAL__KIND: "nats",
      CUCKOOD__NATS__SERVERS: clients.map((client) => `nats://127.0.0.1:${client}`).join(","),
      CUCKOOD__CLUSTER__NODE: name,
    });
  }
  const urls = nodes.map((port) => `http://127.0.0.1:${port}`);
  const until = Date.now() + PATIENCE_MILLISECONDS;
  for (const [at, url] of urls.entries()) {
    while (!(await fetch(`${url}/readyz`).then((answer) => answer.ok, () => false))) {
      if (Date.now() > until) {
        const log = await readFile(join(folder, `node-${at + 1}.log`), "utf8");
        await end();
        throw new Error(`node-${at + 1} is not ready:\n${log}`);
      }
      await new Promise((resume) => setTimeout(resume, 50));
    }
  }
  return { urls, kill, end };
}
