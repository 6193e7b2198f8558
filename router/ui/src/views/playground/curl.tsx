import { useState } from "preact/hooks";

const MAX_SHOWN = 2000;

/** A command for a shell, with a button that copies it. */
export function Curl({ title, command }: { title: string; command: string }) {
  const [isCopied, setCopied] = useState(false);
  const copy = async () => {
    setCopied(await isCopiedBy(command));
  };
  return (
    <div class="playground-curl">
      <header>
        <h4>{title}</h4>
        {navigator.clipboard && (
          <button type="button" class="plain" onClick={() => void copy()}>
            Copy
          </button>
        )}
        <span role="status">{isCopied && "Copied."}</span>
      </header>
      <pre class="playground-text">
        <code>{command.length > MAX_SHOWN ? `${command.slice(0, MAX_SHOWN)}…` : command}</code>
      </pre>
    </div>
  );
}

/** Browsers have a clipboard for pages only where the connection is secure, or to this machine. */
async function isCopiedBy(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // the text is there to be selected
  }
}
