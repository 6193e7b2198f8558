import { signal } from "@preact/signals";

interface Notice {
  id: number;
  kind: "good" | "bad";
  text: string;
}

const MAX_SHOWN = 4;
const GOOD_IS_SHOWN_MS = 6000;

const notices = signal<readonly Notice[]>([]);
let nextId = 0;

/** Says what has been done, or why something failed. What failed stays until it is dismissed, or another view is shown. */
export function note(kind: Notice["kind"], text: string): void {
  const notice = { id: nextId++, kind, text };
  const others = notices.value.filter((one) => one.text !== text);
  notices.value = [...others.slice(1 - MAX_SHOWN), notice];
  if (kind === "good") setTimeout(() => dismiss(notice.id), GOOD_IS_SHOWN_MS);
}

export function noteError(error: unknown): void {
  note("bad", textOf(error));
}

export function textOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

export function dismissErrors(): void {
  notices.value = notices.value.filter((one) => one.kind !== "bad");
}

function dismiss(id: number): void {
  notices.value = notices.value.filter((one) => one.id !== id);
}

export function Notices() {
  return (
    <div class="notices" role="status" aria-live="polite">
      {notices.value.map((one) => (
        <p key={one.id} class={`notice ${one.kind}`}>
          <span>{one.text}</span>
          <button type="button" class="plain" aria-label="Dismiss" onClick={() => dismiss(one.id)}>
            ×
          </button>
        </p>
      ))}
    </div>
  );
}
