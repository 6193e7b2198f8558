import { CopyButton } from "../../parts/copy_button";

const MAX_SHOWN = 2000;

/** A command for a shell, with a button that copies it. */
export function Curl({ title, command }: { title: string; command: string }) {
  return (
    <div class="playground-curl">
      <header>
        <h4>{title}</h4>
        <CopyButton text={command} />
      </header>
      <pre class="playground-text">
        <code>{command.length > MAX_SHOWN ? `${command.slice(0, MAX_SHOWN)}…` : command}</code>
      </pre>
    </div>
  );
}
