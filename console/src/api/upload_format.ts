/** The format of a file, told by its name. */

/** Media type and compression of `users.csv.gz`, say. */
export function formatOf(name: string): { type: string; coding?: string } {
  const parts = name.toLowerCase().split(".");
  const last = parts.at(-1) ?? "";
  const coding = { gz: "gzip", zst: "zstd" }[last];
  const end = coding === undefined ? last : (parts.at(-2) ?? "");
  const type = { csv: "text/csv", ndjson: "application/x-ndjson", jsonl: "application/x-ndjson" }[end] ?? "text/plain";
  return coding === undefined ? { type } : { type, coding };
}
