// Builds the page into assets/console, from where the program compiles it in. An argument names another folder.

import { build } from "esbuild";
import { copyFile, mkdir, readFile, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, "../assets/console");

await mkdir(out, { recursive: true });
await build({
  absWorkingDir: here,
  entryPoints: { app: "src/main.tsx" },
  outdir: out,
  bundle: true,
  minify: true,
  charset: "utf8",
  target: ["es2022"],
  legalComments: "none",
  logLevel: "warning",
});
for (const name of ["index.html", "icon.svg"]) {
  await copyFile(join(here, "public", name), join(out, name));
}

// The licences of what is built in.
const { dependencies } = JSON.parse(await readFile(join(here, "package.json"), "utf8"));
const libraries = ["@preact/signals-core", ...Object.keys(dependencies)].sort();
const notices = await Promise.all(
  libraries.map(async (name) => {
    const folder = join(here, "node_modules", name);
    const { version } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
    return `${name} ${version}\n\n${(await readFile(join(folder, "LICENSE"), "utf8")).trim()}\n`;
  }),
);
await writeFile(join(out, "NOTICE"), notices.join("\n---\n\n"));
