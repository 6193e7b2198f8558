import { useLayoutEffect, useRef } from "preact/hooks";
import { isCopied } from "../../../parts/copy";
import { GrowingBlocks } from "./blocks";
import { harmless } from "./harmless";
import { codeParts } from "./highlight";

const MAX_HIGHLIGHTED = 20_000; // characters of a block

/** A text of a model, which may be growing. */
export function MarkdownText({ text }: { text: string }) {
  const growing = useRef<GrowingBlocks>(null);
  growing.current ??= new GrowingBlocks();
  return (
    <div class="markdown">
      {growing.current.of(text).map((block, index) => (
        <MarkdownBlock key={index} source={block} />
      ))}
    </div>
  );
}

function MarkdownBlock({ source }: { source: string }) {
  const place = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const nodes = harmless(source);
    for (const block of nodes.querySelectorAll("pre")) addColoursAndCopy(block);
    place.current?.replaceChildren(nodes);
  }, [source]);
  return <div ref={place} />;
}

function addColoursAndCopy(block: HTMLPreElement): void {
  const code = block.querySelector("code");
  const source = code?.textContent ?? "";
  block.tabIndex = 0; // it may be wider than the page, and is scrolled by keys
  if (code && source.length <= MAX_HIGHLIGHTED) code.replaceChildren(...codeParts(source).map(nodeOf));
  const button = document.createElement("button");
  button.type = "button";
  button.className = "plain chat-copy";
  button.textContent = "Copy";
  button.onclick = async () => {
    button.textContent = (await isCopied(source)) ? "Copied" : "Not copied";
  };
  const around = document.createElement("div");
  around.className = "chat-code";
  block.replaceWith(around);
  around.append(block, button);
}

function nodeOf({ kind, text }: ReturnType<typeof codeParts>[number]): Node {
  if (!kind) return document.createTextNode(text);
  const span = document.createElement("span");
  span.className = `code-${kind}`;
  span.textContent = text;
  return span;
}
