/** Splits a text that grows into blocks of Markdown, so that only its end is parsed anew. */
import { markdown } from "./harmless";

export class GrowingBlocks {
  private settled: string[] = [];
  private settledText = "";

  /** The blocks of a text, in order. All but the last one stay as they are while the text grows. */
  of(text: string): string[] {
    if (!text.startsWith(this.settledText)) {
      this.settled = [];
      this.settledText = "";
    }
    const blocks = blocksOf(text.slice(this.settledText.length));
    for (const block of blocks.slice(0, -1)) {
      this.settled.push(block);
      this.settledText += block;
    }
    return [...this.settled, ...blocks.slice(-1)];
  }
}

/** Blank lines belong to the block before them: what follows them may still be part of it, as in a list. */
function blocksOf(text: string): string[] {
  const blocks: string[] = [];
  let end = 0;
  for (const token of markdown.lexer(text)) {
    const raw = text.slice(end, end + token.raw.length);
    end += token.raw.length;
    if (token.type === "space" && blocks.length) blocks[blocks.length - 1] += raw;
    else blocks.push(raw);
  }
  if (end < text.length && blocks.length) blocks[blocks.length - 1] += text.slice(end);
  return blocks;
}
