/** What the service can do and what it takes, read from its own OpenAPI document. So the page fits older and newer services. */

import type { Call } from "./call.ts";
import { NOUN, type Kind } from "./types.ts";

type Security = Readonly<Record<string, readonly string[]>>;

interface Described {
  readonly security?: readonly Security[];
  readonly parameters?: readonly Readonly<Record<string, unknown>>[];
}

export interface OpenApi {
  readonly paths: Readonly<Record<string, Readonly<Record<string, Described>>>>;
  readonly components: {
    readonly schemas: Readonly<Record<string, { readonly properties?: Readonly<Record<string, unknown>> }>>;
  };
}

/** `GET /v1/info`, say. */
export type Operation = `${"GET" | "PUT" | "POST" | "PATCH" | "DELETE"} /${string}`;

function find(document: OpenApi, operation: Operation) {
  const [method, path] = operation.split(" ") as [string, string];
  return document.paths[path]?.[method.toLowerCase()];
}

export function has(document: OpenApi, operation: Operation): boolean {
  return find(document, operation) !== undefined;
}

/** Whether a schema has a field. */
export function takes(document: OpenApi, schema: string, field: string): boolean {
  return document.components.schemas[schema]?.properties?.[field] !== undefined;
}

/** Whether an operation has a parameter. */
export function hasParameter(document: OpenApi, operation: Operation, parameter: string): boolean {
  return (find(document, operation)?.parameters ?? []).some(({ name }) => name === parameter);
}

/** Whether a request takes an idempotency key: writes do, but for imports. */
export function takesKey(document: OpenApi, { method, path }: Call): boolean {
  const isOf = (template: string) => new RegExp(`^${template.replace(/\{\w+\}/g, "[^/]+")}$`).test(`/${path}`);
  const [, operations] = Object.entries(document.paths).find(([template]) => isOf(template)) ?? [];
  const parameters = operations?.[method.toLowerCase()]?.parameters ?? [];
  return parameters.some(({ $ref, name }) => $ref === "#/components/parameters/Idempotency-Key" || name === "Idempotency-Key");
}

/** Whether a caller with these scopes may do it: undefined if it has no key. */
export function may(document: OpenApi, operation: Operation, scopes: readonly string[] | undefined): boolean {
  const found = find(document, operation);
  if (found === undefined) {
    return false;
  }
  // An empty list says that no key is needed.
  const ways = found.security?.length ? found.security : [{}];
  return ways.some((way) => {
    const needed = Object.values(way).flat();
    return needed.every((scope) => scopes?.includes("admin") || scopes?.includes(scope));
  });
}

/** An operation on one campaign or coupon. */
export function on(kind: Kind, method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE", rest = ""): Operation {
  return `${method} /v1/${kind}/{${NOUN[kind].one}}${rest}`;
}
