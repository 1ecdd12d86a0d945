// Builds the tests of a folder of test/ and runs them: `node test.mjs unit`, `node test.mjs browser line_ups`. Files of test/ that are no tests are run as they are.

import { build } from "esbuild";
import { spawnSync } from "node:child_process";
import { readdir, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const [what = "unit", ...rest] = process.argv.slice(2);
const out = join(here, "build", what);

/** How many files of tests run at a time, each with its browser and its service: they wait more than they compute. */
const FILES = 2;
/** How long a test may take on a busy machine, and all of them. */
const TEST_MILLISECONDS = 300_000;
const RUN_MILLISECONDS = 1_500_000;

const isScript = ["pictures", "cluster"].includes(what);
// What follows the folder are names of files, and options for Node's runner (`--test-name-pattern=…`); or arguments of the script.
const names = rest.filter((word) => !word.startsWith("-"));
const isWanted = (file) => file.endsWith(".test.ts") && (names.length === 0 || names.includes(file.replace(".test.ts", "")));
const files = isScript ? [`test/${what}.ts`] : (await readdir(join(here, "test", what))).filter(isWanted).map((name) => `test/${what}/${name}`);

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
const reporter = rest.some((option) => option.startsWith("--test-reporter")) ? [] : ["--test-reporter=spec"];
// A test or a hook that hangs fails and is reported; what it leaves open does not keep the run alive.
const limits = [`--test-timeout=${TEST_MILLISECONDS}`, "--test-force-exit"];
const options = isScript ? [...built, ...rest] : ["--test", `--test-concurrency=${FILES}`, ...limits, ...reporter, ...rest.filter((word) => !names.includes(word)), ...built];
const { status, error } = spawnSync(process.execPath, ["--enable-source-maps", ...options], { cwd: here, stdio: "inherit", ...(isScript ? {} : { timeout: RUN_MILLISECONDS }) });
if (error !== undefined) {
  console.error(`console: the ${what} tests did not end: ${error.message}`);
}
process.exit(status ?? 1);
