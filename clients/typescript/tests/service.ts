/** A service of its own for the tests of a file, and proxies that make a connection to it fail. */

import { type ChildProcess, spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer as createHttpServer, type RequestListener } from "node:http";
import { type AddressInfo, connect, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { after } from "node:test";

export const KEY = "clients";
const PROGRAM = process.env["CUCKOOD"] ?? "../../target/debug/cuckood";

/** A service over a directory, after each start on another port. */
export class Service {
  url = "";
  #process!: ChildProcess;
  #ended!: Promise<unknown[]>;
  #log: string[] = [];

  constructor(readonly directory: string) {}

  /** Starts it, and waits until it is ready. */
  async start(): Promise<void> {
    const sha256 = createHash("sha256").update(KEY).digest("hex");
    const env = {
      ...process.env,
      CUCKOOD__SERVER__LISTEN: "127.0.0.1:0",
      CUCKOOD__STORAGE__PATH: join(this.directory, "data"),
      CUCKOOD__STORAGE__DURABILITY: "flush",
      CUCKOOD__LIMITS__MEMORY: "256MiB",
      CUCKOOD__LOG__FORMAT: "json",
      CUCKOOD__AUTH__KEYS: `[{name="admin", sha256="${sha256}", scopes=["admin"]}]`,
    };
    const service = spawn(PROGRAM, ["serve"], { env, stdio: ["ignore", "ignore", "pipe"] });
    const ended = once(service, "exit");
    const log: string[] = [];
    [this.#process, this.#ended, this.#log] = [service, ended, log];
    this.url = await new Promise<string>((resolve, reject) => {
      createInterface(service.stderr).on("line", (line) => {
        log.push(line);
        const found: unknown = JSON.parse(line).fields?.address;
        if (typeof found === "string") {
          resolve(`http://${found}`);
        }
      });
      ended.then(() => reject(new Error(log.join("\n"))), reject);
    });
    // The port is bound before everything is read.
    while (!(await fetch(`${this.url}/readyz`)).ok) {
      await new Promise((resume) => setTimeout(resume, 20));
    }
  }

  /** Kills it. */
  async kill(): Promise<void> {
    this.#process.kill("SIGKILL");
    await this.#ended;
  }

  /** Stops it, and fails after a panic. */
  async stop(): Promise<void> {
    this.#process.kill();
    const [code] = await this.#ended;
    await rm(this.directory, { recursive: true });
    if (code !== 0 || this.#log.some((line) => line.includes("panicked"))) {
      throw new Error(this.#log.join("\n"));
    }
  }
}

/** Starts a service, and stops it after the tests. */
export async function start(): Promise<Service> {
  const service = new Service(await mkdtemp(join(tmpdir(), "cuckood-")));
  await service.start();
  after(() => service.stop());
  return service;
}

/** Starts a service, stops it after the tests, and gives its address. */
export async function serve(): Promise<string> {
  return (await start()).url;
}

/** Starts a server that answers in a service's place, closes it after the tests, and gives its address. */
export async function answering(answer: RequestListener): Promise<string> {
  const server = createHttpServer(answer).listen(0, "127.0.0.1");
  await once(server, "listening");
  after(() => {
    server.close();
    server.closeAllConnections();
  });
  return `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
}

/** How a connection fails. */
export type Fault =
  /** It is lost when so many bytes have been sent. */
  | { cutAfter: number }
  /** It is lost when the service has done its work and begins to answer. */
  | "no answer"
  /** It is lost after this number of bytes of the response. */
  | { answerOf: number }
  /** The service never responds. */
  | "hang"
  /** The response arrives byte by byte. */
  | "drip"
  /** Somebody answers 503 in the service's name, with its own words. */
  | { retryAfter: number };

/** A proxy whose first connections fail, each in its own way; the later ones work. */
export interface Proxy {
  url: string;
  /** What it forwards to. */
  service: string;
  /** All that clients have sent. */
  sent(): string;
}

/** Starts one, and closes it after the tests. */
export async function proxy(service: string, ...faults: Fault[]): Promise<Proxy> {
  const blocks: Buffer[] = [];
  const made: Proxy = { url: "", service, sent: () => Buffer.concat(blocks).toString("latin1") };
  const server = createServer((client) => {
    const fault = faults.shift();
    const { hostname, port } = new URL(made.service);
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
      if (fault !== "hang") {
        behind.write(block);
      }
      if (typeof fault === "object" && "cutAfter" in fault && length >= fault.cutAfter) {
        client.destroy();
      }
    });
    behind.on("data", async (block) => {
      if (fault === "no answer") {
        client.destroy();
      } else if (typeof fault === "object" && "answerOf" in fault) {
        client.write(block.subarray(0, fault.answerOf), () => client.destroy());
      } else if (fault === "drip") {
        for (const byte of block) {
          client.write(Buffer.of(byte));
          await new Promise((resume) => setTimeout(resume, 20));
        }
      } else {
        client.write(block);
      }
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  after(() => server.close());
  const { port: own } = server.address() as AddressInfo;
  made.url = `http://127.0.0.1:${own}`;
  return made;
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
