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

/** The successful responses, by status and media type: the members that a document must have. */
const answers = (responses) =>
  Object.fromEntries(
    Object.entries(responses)
      .filter(([status]) => status < "300")
      .map(([status, response]) => [status, members(resolve(response).content ?? {})]),
  );
const members = (content) =>
  Object.fromEntries(
    Object.entries(content).map(([type, { schema = {} }]) => [type.split(";")[0], resolve(schema).required ?? []]),
  );

/** Which deadline an operation has, how it is repeated, and what it answers. */
function sending(method, { parameters = [], tags, requestBody, responses }) {
  const headers = parameters.map((parameter) => resolve(parameter).name);
  const bytes = (body) => Object.values(body?.content ?? {})[0]?.schema.format === "binary";
  const isRead = method === "get" || headers.includes("X-Cuckood-Min-Position");
  const isImport = tags.includes("imports") && requestBody !== undefined;
  const isTransfer = [requestBody, responses["200"]].some(bytes);
  return {
    kind: isTransfer ? "transfer" : isRead ? "read" : "write",
    isRead,
    // A redemption is identified by its reference or id, and an import by its id.
    isKeyed: headers.includes("Idempotency-Key") && !tags.includes("redemptions"),
    isRepeated: headers.includes("Idempotency-Key") || isImport,
    answers: answers(responses),
  };
}

const sendings = Object.entries(document.paths).flatMap(([path, item]) =>
  Object.entries(item).map(([method, operation]) => [
    `${method.toUpperCase()} ${path}`,
    sending(method, operation),
  ]),
);
if (!sendings.some(([, { isKeyed }]) => isKeyed)) {
  throw new Error("No operation takes an Idempotency-Key: retries would have no key");
}
const source = `/** How an operation is sent. */
export interface Sending {
  /** Which deadline it has. A transfer is an upload, a download or a wait: its length has no bound. */
  kind: "read" | "write" | "transfer";
  isRead: boolean;
  /** It is repeated under an idempotency key. */
  isKeyed: boolean;
  isRepeated: boolean;
  /** The successful responses, by status and media type: the members that a document must have. */
  answers: Readonly<Record<string, Readonly<Record<string, readonly string[]>>>>;
}

/** How each operation is sent. */
export const sendings: Readonly<Record<string, Sending>> = ${JSON.stringify(Object.fromEntries(sendings), undefined, 2)};
`;
await writeFile(`${root}/src/generated/sendings.ts`, source);
