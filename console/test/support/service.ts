/** A service of its own for a test, over a directory that is thrown away. */

import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

const PROGRAM = process.env["CUCKOOD"] ?? "../target/debug/cuckood";

/** How long a service may take to end its requests before it is killed, which is a failure. */
const STOP_MILLISECONDS = 60_000;

export interface Service {
  readonly url: string;
  stop(): Promise<void>;
}

/** Keys by name, each with its scopes. The key itself is its name. */
export type Keys = Readonly<Record<string, readonly string[]>>;

export async function serve(keys: Keys = {}): Promise<Service> {
  const data = await mkdtemp(join(tmpdir(), "cuckood-console-"));
  const entries = Object.entries(keys).map(([name, scopes]) => {
    const sha256 = createHash("sha256").update(name).digest("hex");
    return `{name="${name}", sha256="${sha256}", scopes=${JSON.stringify(scopes)}}`;
  });
  const env = {
    ...process.env,
    CUCKOOD__SERVER__LISTEN: "127.0.0.1:0",
    CUCKOOD__STORAGE__PATH: join(data, "data"),
    CUCKOOD__STORAGE__DURABILITY: "flush",
    CUCKOOD__LIMITS__MEMORY: "256MiB",
    CUCKOOD__LOG__FORMAT: "json",
    CUCKOOD__AUTH__KEYS: `[${entries.join(", ")}]`,
  };
  const service = spawn(PROGRAM, ["serve"], { env, stdio: ["ignore", "ignore", "pipe"] });
  const ended = once(service, "exit");
  const kill = () => service.kill("SIGKILL");
  // Nothing outlives a run that is cut short.
  process.on("exit", kill);
  const log: string[] = [];
  const url = await new Promise<string>((resolve, reject) => {
    createInterface(service.stderr).on("line", (line) => {
      log.push(line);
      const address: unknown = line.startsWith("{") ? JSON.parse(line).fields?.address : undefined;
      if (typeof address === "string") {
        resolve(`http://${address}`);
      }
    });
    ended.then(() => reject(new Error(log.join("\n"))), reject);
  });
  // The port is bound before everything is read.
  while (!(await fetch(`${url}/readyz`)).ok) {
    await new Promise((resume) => setTimeout(resume, 20));
  }
  const stop = async () => {
    service.kill();
    const timer = setTimeout(kill, STOP_MILLISECONDS);
    const [code] = await ended;
    clearTimeout(timer);
    process.off("exit", kill);
    await rm(data, { recursive: true, force: true });
    if (code !== 0 || log.some((line) => line.includes("panicked"))) {
      throw new Error(log.join("\n"));
    }
  };
  return { url, stop };
}
