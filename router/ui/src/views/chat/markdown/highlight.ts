/** Colours for source text: what most languages share, without knowing which one it is. */
export interface CodePart {
  kind: "comment" | "string" | "number" | "keyword" | "";
  text: string;
}

const KEYWORDS = new Set(
  (
    "and as async await break case catch class const continue def del do elif else enum except export extends false " +
    "False final finally fn for from func function global if impl import in interface is lambda let match mut new " +
    "None nil not null or package pass pub raise return self static struct super switch this throw true True try " +
    "type typeof use var void while with yield"
  ).split(" "),
);
const TOKEN =
  /(?<comment>(?:^|(?<=\s))#[^\n]*|\/\/[^\n]*|\/\*[\s\S]*?\*\/)|(?<string>"""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|`(?:\\.|[^`\\])*`?)|(?<number>\b\d[\w.]*)|(?<word>[A-Za-z_]\w*)/g;

/** The parts of a source text, which are the text if they are put together. */
export function codeParts(code: string): CodePart[] {
  const parts: CodePart[] = [];
  let end = 0;
  for (const match of code.matchAll(TOKEN)) {
    const kind = kindOf(match.groups ?? {});
    if (!kind) continue;
    if (match.index > end) parts.push({ kind: "", text: code.slice(end, match.index) });
    parts.push({ kind, text: match[0] });
    end = match.index + match[0].length;
  }
  if (end < code.length) parts.push({ kind: "", text: code.slice(end) });
  return parts;
}

function kindOf(groups: Record<string, string | undefined>): CodePart["kind"] {
  if (groups.comment !== undefined) return "comment";
  if (groups.string !== undefined) return "string";
  if (groups.number !== undefined) return "number";
  return KEYWORDS.has(groups.word ?? "") ? "keyword" : "";
}
