/** Markdown of a model as nodes that are harmless, whatever the model says. */
import DOMPurify from "dompurify";
import { Marked } from "marked";

const TAGS = [
  ...["p", "br", "hr", "strong", "em", "del", "code", "pre", "blockquote", "ul", "ol", "li", "a"],
  ...["h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td"],
];
const ATTRIBUTES = ["href", "title", "align", "start", "class"];
const LINKS = /^(https?:|mailto:)/i;
const LANGUAGE = /^language-[\w+#.-]{1,30}$/;

export const markdown = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    // HTML is shown as it was written. A picture would be asked for from another host, so its text stands for it.
    html: ({ text }) => escaped(text),
    image: ({ text, title }) => `[image: ${escaped(text || title || "without a text")}]`,
    // Source text outside of a block of code keeps its indentation.
    br: ({ raw }) => `<br>${"\u00a0".repeat(raw.length - raw.lastIndexOf("\n") - 1)}`,
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});

function escaped(text: string): string {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");
}

let purify: typeof DOMPurify | null = null;

export function harmless(source: string): DocumentFragment {
  purify ??= purifier();
  return purify.sanitize(markdown.parse(source, { async: false }), {
    ALLOWED_TAGS: TAGS,
    ALLOWED_ATTR: ATTRIBUTES,
    ALLOWED_URI_REGEXP: LINKS,
    ALLOW_DATA_ATTR: false,
    ALLOW_ARIA_ATTR: false,
    RETURN_DOM_FRAGMENT: true,
  });
}

function purifier(): typeof DOMPurify {
  const made = DOMPurify(window);
  made.addHook("afterSanitizeAttributes", (node) => {
    if (node.tagName === "A") {
      node.setAttribute("target", "_blank");
      node.setAttribute("rel", "noopener noreferrer");
    }
    if (!LANGUAGE.test(node.getAttribute("class") ?? "")) node.removeAttribute("class");
  });
  return made;
}
