// Writes the licences of the packages that are part of the built page: licences.mjs FOLDER_OF_PACKAGE_JSON FILE
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const [folder, file] = process.argv.slice(2);

/** The packages that a package depends on at run time, itself included. */
function withDependencies(names, found = new Set()) {
  for (const name of names) {
    if (found.has(name)) continue;
    found.add(name);
    withDependencies(Object.keys(packageOf(name).dependencies ?? {}), found);
  }
  return found;
}

function packageOf(name) {
  return JSON.parse(readFileSync(join(folder, "node_modules", name, "package.json"), "utf8"));
}

function licenceOf(name) {
  const inside = join(folder, "node_modules", name);
  const { version, license } = packageOf(name);
  const texts = readdirSync(inside).filter((entry) => /^licen[cs]e/i.test(entry)).sort();
  if (!texts.length) throw new Error(`${name} ${version} has no file with its licence`);
  const text = readFileSync(join(inside, texts[0]), "utf8").replaceAll("\r\n", "\n").trim();
  return `${name} ${version} (${license})\n\n${text}\n`;
}

const direct = Object.keys(JSON.parse(readFileSync(join(folder, "package.json"), "utf8")).dependencies);
const names = [...withDependencies(direct)].sort();
const head = "Packages that are part of this page, and their licences.\n";
writeFileSync(file, [head, ...names.map(licenceOf)].join(`\n${"-".repeat(80)}\n\n`));
