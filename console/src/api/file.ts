/** What can be told of a file before it is uploaded: its format by its name, and the columns of a CSV. */

import { rowsOf } from "./csv.ts";

export interface Format {
  readonly type: "text/plain" | "text/csv" | "application/x-ndjson";
  readonly coding?: "gzip" | "zstd";
}

/** Media type and compression of `users.csv.gz`, say. */
export function formatOf(name: string): Format {
  const parts = name.toLowerCase().split(".");
  const last = parts.at(-1) ?? "";
  const coding = last === "gz" ? "gzip" : last === "zst" ? "zstd" : undefined;
  const end = coding === undefined ? last : (parts.at(-2) ?? "");
  const type = end === "csv" ? "text/csv" : end === "ndjson" || end === "jsonl" ? "application/x-ndjson" : "text/plain";
  return coding === undefined ? { type } : { type, coding };
}

/** How much of a file is read for its first line. */
const HEAD_BYTES = 64 << 10;

/** The columns of a CSV file; none if it is compressed in a way that browsers can't read. */
export async function columns(file: File): Promise<string[]> {
  const { type, coding } = formatOf(file.name);
  if (type !== "text/csv" || coding === "zstd") {
    return [];
  }
  const stream = coding === "gzip" ? file.stream().pipeThrough(new DecompressionStream("gzip")) : file.slice(0, HEAD_BYTES).stream();
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let text = "";
  for (let part = await reader.read(); !part.done && !text.includes("\n") && text.length < HEAD_BYTES; part = await reader.read()) {
    text += decoder.decode(part.value, { stream: true });
  }
  await reader.cancel();
  return [...(rowsOf(text)[0] ?? [])];
}
