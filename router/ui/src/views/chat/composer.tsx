import { useRef, useState } from "preact/hooks";
import { ask, columns, numRunning, stop, turns } from "./conversation";

/** Enter sends, Shift+Enter begins a new line. */
export function Composer() {
  const [text, setText] = useState("");
  const field = useRef<HTMLTextAreaElement>(null);
  const isRunning = numRunning.value > 0;
  const mayBeEmpty = turns.value.at(-1)?.answers.some((one) => one.value.finishReason === "tool_calls");
  const canSend = !isRunning && columns.value.length > 0 && (text.trim() !== "" || mayBeEmpty === true);
  const submit = () => {
    if (!canSend || !ask(text.trim())) return;
    setText("");
    field.current?.focus();
    requestAnimationFrame(() => scrollTo({ top: document.body.scrollHeight }));
  };
  return (
    <form
      class="chat-composer"
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
    >
      <label class="chat-composer-field">
        <span class="visually-hidden">Message</span>
        <textarea
          ref={field}
          rows={2}
          value={text}
          placeholder={mayBeEmpty ? "A message, or nothing to send the results of tools" : "A message"}
          onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
            event.preventDefault();
            submit();
          }}
        />
      </label>
      {isRunning ? (
        <button type="button" onClick={stop}>
          Stop
        </button>
      ) : (
        <button type="submit" class="primary" disabled={!canSend}>
          Send
        </button>
      )}
    </form>
  );
}
