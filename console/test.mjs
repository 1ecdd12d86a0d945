// Builds the tests of a folder of test/ and runs them: `node test.mjs unit`. Files of test/ that are no tests are run as they are.

import { build } from "esbuild";
import { spawnSync } from "node:child_process";
import { readdir, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const [what = "unit", ...rest] = process.argv.slice(2);
const out = join(here, "build", what);

const isScript = ["pictures", "cluster"].includes(what);
const files = isScript
  ? [`test/${what}.ts`]
  : (await readdir(join(here, "test", what))).filter((name) => name.endsWith(".test.ts")).map((name) => `test/${what}/${name}`);

await rm(out, { recursive: true, force: true });
await build({
  absWorkingDir: here,
  entryPoints: files,
  outdir: out,
  entryNames: "[name]",
  outExtension: { ".js": ".mjs" },
  bundle: true,
  packages: "external",
  platform: "node",
  format: "esm",
  sourcemap: "inline",
  logLevel: "warning",
});
const built = (await readdir(out)).map((name) => join(out, name));
const reporter = rest.some((option) => option.startsWith("--test-reporter")) ? [] : ["--test-reporter=dot"];
// What follows the folder is for Node's runner (`--test-name-pattern=…`), or for the script.
const options = isScript ? [...built, ...rest] : ["--test", "--test-concurrency=1", ...reporter, ...rest, ...built];
const { status } = spawnSync(process.execPath, ["--enable-source-maps", ...options], { cwd: here, stdio: "inherit" });
process.exit(status ?? 1);
