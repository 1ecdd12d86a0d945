/** Generates `src/generated` from the OpenAPI document. */

import { readFile, writeFile } from "node:fs/promises";
import { createClient } from "@hey-api/openapi-ts";

const root = new URL(".", import.meta.url).pathname;
const document = JSON.parse(await readFile(`${root}/../../openapi/openapi.json`, "utf8"));

await createClient({
  input: document,
  output: `${root}/src/generated`,
  logs: { file: false, level: "silent" },
  plugins: [
    "@hey-api/typescript",
    { name: "@hey-api/client-fetch", throwOnError: true },
    {
      name: "@hey-api/sdk",
      operations: { strategy: "single", containerName: "Cuckood", methods: "instance" },
      responseStyle: "data",
    },
  ],
});

/** The part of the document that a reference leads to. */
const resolve = (part) =>
  part.$ref === undefined ? part : part.$ref.slice(2).split("/").reduce((at, step) => at[step], document);

// A redemption is told by its reference or its id, and repeated without a key.
const keyed = Object.entries(document.paths).flatMap(([path, item]) =>
  Object.entries(item)
    .filter(([, { parameters = [], tags }]) =>
      !tags.includes("redemptions") && parameters.map(resolve).some(({ name }) => name === "Idempotency-Key"),
    )
    .map(([method]) => `${method.toUpperCase()} ${path}`),
);
if (keyed.length === 0) {
  throw new Error("No operation takes an Idempotency-Key: retries would have no key");
}
const keyedSource = `/** The operations that are repeated under an idempotency key. */
export const keyed: ReadonlySet<string> = new Set(${JSON.stringify(keyed, undefined, 2)});
`;
await writeFile(`${root}/src/generated/keyed.ts`, keyedSource);
