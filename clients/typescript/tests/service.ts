/** A service of its own for the tests of a file, and proxies that make a connection to it fail. */

import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { type AddressInfo, connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after } from "node:test";

export const KEY = "clients";
const PROGRAM = process.env["CUCKOOD"] ?? "../../target/debug/cuckood";

/** Starts a service, stops it after the tests, and gives its address. */
export async function serve(): Promise<string> {
  const data = await mkdtemp(join(tmpdir(), "cuckood-"));
  const sha256 = createHash("sha256").update(KEY).digest("hex");
  const env = {
    ...process.env,
    CUCKOOD__SERVER__LISTEN: "127.0.0.1:0",
    CUCKOOD__STORAGE__PATH: join(data, "data"),
    CUCKOOD__STORAGE__DURABILITY: "flush",
    CUCKOOD__LIMITS__MEMORY: "256MiB",
    CUCKOOD__LOG__FORMAT: "json",
    CUCKOOD__AUTH__KEYS: `[{name="admin", sha256="${sha256}", scopes=["admin"]}]`,
  };
  const service = spawn(PROGRAM, ["serve"], { env, stdio: ["ignore", "ignore", "pipe"] });
  const ended = once(service, "exit");
  const log: string[] = [];
  const lines = createInterface(service.stderr);
  const address = new Promise<string>((resolve, reject) => {
    lines.on("line", (line) => {
      log.push(line);
      const found: unknown = JSON.parse(line).fields?.address;
      if (typeof found === "string") {
        resolve(`http://${found}`);
      }
    });
    ended.then(() => reject(new Error(log.join("\n"))), reject);
  });
  after(async () => {
    service.kill();
    const [code] = await ended;
    await rm(data, { recursive: true });
    if (code !== 0 || log.some((line) => line.includes("panicked"))) {
      throw new Error(log.join("\n"));
    }
  });
  // The port is bound before everything is read.
  while (!(await fetch(`${await address}/readyz`)).ok) {
    await new Promise((resume) => setTimeout(resume, 20));
  }
  return address;
}

/** How a connection fails. */
export type Fault =
  /** It is lost when so many bytes have been sent. */
  | { cutAfter: number }
  /** It is lost when the service has done its work and begins to answer. */
  | "no answer"
  /** Somebody answers 503 in the service's name, with its own words. */
  | { retryAfter: number };

/** A proxy whose first connections fail, each in its own way; the later ones work. */
export interface Proxy {
  url: string;
  /** All that clients have sent. */
  sent(): string;
}

/** Starts one, and closes it after the tests. */
export async function proxy(service: string, ...faults: Fault[]): Promise<Proxy> {
  const { hostname, port } = new URL(service);
  const blocks: Buffer[] = [];
  const server = createServer((client) => {
    const fault = faults.shift();
    const behind = connect(Number(port), hostname);
    for (const end of [client, behind]) {
      end.on("error", () => undefined);
      end.on("close", () => [client, behind].forEach((other) => other.destroy()));
    }
    let length = 0;
    client.on("data", (block) => {
      blocks.push(block);
      length += block.length;
      if (typeof fault === "object" && "retryAfter" in fault) {
        client.end(unavailable(fault.retryAfter));
        return;
      }
      behind.write(block);
      if (typeof fault === "object" && length >= fault.cutAfter) {
        client.destroy();
      }
    });
    behind.on("data", (block) => (fault === "no answer" ? client.destroy() : client.write(block)));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  after(() => server.close());
  const { port: own } = server.address() as AddressInfo;
  return { url: `http://127.0.0.1:${own}`, sent: () => Buffer.concat(blocks).toString("latin1") };
}

function unavailable(seconds: number): string {
  const problem = JSON.stringify({
    type: "urn:cuckood:problem:overloaded",
    code: "overloaded",
    title: "Too much at once",
    status: 503,
    detail: "made up",
    request_id: "0",
  });
  const head = [
    "HTTP/1.1 503 Service Unavailable",
    "Content-Type: application/problem+json",
    `Retry-After: ${seconds}`,
    `Content-Length: ${problem.length}`,
    "Connection: close",
  ];
  return `${head.join("\r\n")}\r\n\r\n${problem}`;
}
