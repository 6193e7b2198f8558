import { useEffect, useState } from "preact/hooks";
import { isCopied } from "./copy";

const OUTCOME_IS_SHOWN_MS = 2000;

/** Copies a text, and says so on itself. */
export function CopyButton({ text, title = "Copy" }: { text: string; title?: string }) {
  const [outcome, setOutcome] = useState("");
  useEffect(() => {
    if (!outcome) return;
    const timer = setTimeout(() => setOutcome(""), OUTCOME_IS_SHOWN_MS);
    return () => clearTimeout(timer);
  }, [outcome]);
  const copy = async () => setOutcome((await isCopied(text)) ? "Copied" : "Not copied");
  return (
    <button type="button" class="plain" aria-live="polite" onClick={() => void copy()}>
      {outcome || title}
    </button>
  );
}
