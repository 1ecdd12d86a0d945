/** A call as a curl command: whatever it holds, a shell takes it as it stands. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { test } from "node:test";
import { curl, target, type Call } from "../../src/api/call.ts";

const BASE = "http://127.0.0.1:8080/console";

/** The words that a shell makes of a command. */
function words(command: string, variables: Record<string, string> = {}): string[] {
  const script = `curl() { printf '%s\\0' "$@"; }\n${command}`;
  const text = execFileSync("sh", ["-c", script], { env: { ...process.env, ...variables }, encoding: "utf8" });
  return text.split("\0").slice(0, -1);
}

test("a question is its address alone", () => {
  const call: Call = { method: "GET", path: "v1/campaigns", query: { limit: 5, cursor: undefined, prefix: "" } };
  assert.equal(curl(call, BASE, false), "curl 'http://127.0.0.1:8080/v1/campaigns?limit=5'");
  assert.equal(target({ method: "GET", path: "v1/info" }), "v1/info");
});

test("the key comes from the environment, and is not in the text", () => {
  const text = curl({ method: "DELETE", path: "v1/campaigns/a" }, BASE, true);
  assert.deepEqual(words(text, { CUCKOOD_KEY: "ck_1" }), [
    "-X", "DELETE", "http://127.0.0.1:8080/v1/campaigns/a", "-H", "Authorization: Bearer ck_1",
  ]);
  assert.ok(!text.includes("ck_1"));
});

test("no item gets out of its quotes", () => {
  const alphabet = ["'", '"', "\\", "$(id)", "`id`", "\n", " ", "é", "!", "a", "%", "#", "{", "&&"];
  for (let round = 0; round < 50; round += 1) {
    const item = Array.from({ length: 8 }, () => alphabet[Math.floor(Math.random() * alphabet.length)]).join("");
    const body = { codes: [item] };
    const call: Call = { method: "POST", path: "v1/coupons/c/codes/check", body };
    const sent = words(curl(call, BASE, false));
    assert.deepEqual(JSON.parse(sent.at(-1) ?? ""), body, item);
    assert.deepEqual(sent.slice(-4, -1), ["-H", "Content-Type: application/json", "-d"]);
  }
});

test("a file is sent as it is read", () => {
  const file = new File(["a\n"], "it's.txt");
  const call: Call = { method: "POST", path: "v1/campaigns/c/imports", query: { dry_run: true }, headers: { "Content-Type": "text/plain" }, file };
  assert.deepEqual(words(curl(call, BASE, false)), [
    "-X", "POST", "-T", "it's.txt", "http://127.0.0.1:8080/v1/campaigns/c/imports?dry_run=true", "-H", "Content-Type: text/plain",
  ]);
});

test("a prefix that a proxy adds is kept", () => {
  const call: Call = { method: "GET", path: "v1/info" };
  assert.equal(curl(call, "https://ads.example/cuckood/console", false), "curl 'https://ads.example/cuckood/v1/info'");
});
