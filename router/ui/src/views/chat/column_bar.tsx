import { isConfirmed } from "../../parts/confirm";
import { clear, columns, exported, MAX_COLUMNS, numRunning, turns } from "./conversation";

interface ColumnBarProps {
  models: readonly string[];
  areSettingsShown: boolean;
  onSettings: () => void;
}

/** Which models answer, and what is done with the whole conversation. */
export function ColumnBar({ models, areSettingsShown, onSettings }: ColumnBarProps) {
  const chosen = columns.value;
  const set = (column: number, model: string) => {
    columns.value = chosen.map((one, at) => (at === column ? model : one));
  };
  return (
    <div class="chat-bar">
      {chosen.map((model, column) => (
        <span key={column} class="chat-column">
          <label>
            <span class="quiet">Model{column ? ` ${column + 1}` : ""}</span>
            <select value={model} onChange={(event) => set(column, event.currentTarget.value)}>
              {[...new Set([...models, model])].map((one) => (
                <option key={one}>{one}</option>
              ))}
            </select>
          </label>
          {chosen.length > 1 && column === chosen.length - 1 && (
            <button
              type="button"
              class="plain"
              aria-label="Remove the last model"
              onClick={() => {
                columns.value = chosen.slice(0, -1);
              }}
            >
              ×
            </button>
          )}
        </span>
      ))}
      {chosen.length > 0 && chosen.length < MAX_COLUMNS && (
        <button
          type="button"
          class="plain"
          onClick={() => {
            columns.value = [...chosen, models.find((one) => !chosen.includes(one)) ?? chosen[0] ?? ""];
          }}
        >
          Add a model
        </button>
      )}
      <span class="chat-bar-end buttons">
        <button type="button" aria-expanded={areSettingsShown} onClick={onSettings}>
          Settings
        </button>
        <button type="button" disabled={!turns.value.length} onClick={download}>
          Export
        </button>
        <button type="button" disabled={!turns.value.length} onClick={() => startAnew()}>
          New
        </button>
      </span>
    </div>
  );
}

async function startAnew(): Promise<void> {
  const about = numRunning.value ? "The answer that is being written is stopped." : "The messages are forgotten.";
  if (await isConfirmed("Begin a new conversation?", about, "Begin anew")) clear();
}

function download(): void {
  const blob = new Blob([JSON.stringify(exported(), null, 2)], { type: "application/json" });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = "conversation.json";
  link.click();
  URL.revokeObjectURL(link.href);
}
