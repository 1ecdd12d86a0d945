/** A request as data: what is sent, and the curl command that would send the same. */

export interface Call {
  readonly method: "GET" | "PUT" | "POST" | "PATCH" | "DELETE";
  /** Without a leading slash, so that it works behind a proxy that adds a prefix. */
  readonly path: string;
  readonly query?: Readonly<Record<string, string | number | boolean | undefined>>;
  readonly body?: unknown;
  readonly file?: File;
  /** Where a command puts the answer, if it is no text. */
  readonly saveAs?: string;
  readonly headers?: Readonly<Record<string, string>>;
  /** The idempotency key. It is not in a command, which is there to be run again. */
  readonly key?: string;
}

/** The environment variable that the program itself takes its key from. */
export const KEY_VARIABLE = "CUCKOOD_KEY";

export function target(call: Call): string {
  const query = Object.entries(call.query ?? {}).filter(([, value]) => value !== undefined && value !== "");
  if (query.length === 0) {
    return call.path;
  }
  return `${call.path}?${new URLSearchParams(query.map(([name, value]) => [name, String(value)]))}`;
}

/** All headers but those with keys. */
export function headers(call: Call): Record<string, string> {
  const type = call.body === undefined ? {} : { "Content-Type": "application/json" };
  return { ...type, ...call.headers };
}

/** The command for a shell. The key is never in it: it comes from the environment. */
export function curl(call: Call, base: string, hasKey: boolean): string {
  const hasBody = call.body !== undefined || call.file !== undefined;
  const isDefault = call.method === (hasBody ? "POST" : "GET");
  const lines = [`curl ${isDefault ? "" : `-X ${call.method} `}${quoted(new URL(target(call), base).href)}`];
  if (hasKey) {
    lines.push(`-H "Authorization: Bearer $${KEY_VARIABLE}"`);
  }
  for (const [name, value] of Object.entries(headers(call))) {
    lines.push(`-H ${quoted(`${name}: ${value}`)}`);
  }
  if (call.file !== undefined) {
    // Not --data-binary, which reads the whole file into memory first.
    lines[0] = `curl -X ${call.method} -T ${quoted(call.file.name)} ${quoted(new URL(target(call), base).href)}`;
  } else if (call.body !== undefined) {
    lines.push(`-d ${quoted(JSON.stringify(call.body))}`);
  }
  if (call.saveAs !== undefined) {
    lines.push(`-o ${quoted(call.saveAs)}`);
  }
  return lines.join(" \\\n  ");
}

/** A word of a shell command that stands for itself. */
export function quoted(word: string): string {
  return `'${word.replaceAll("'", `'\\''`)}'`;
}
