import { useState } from "preact/hooks";
import { addressOf } from "../../parts/routing";
import type { IndexEntry } from "./models";

/** The models of the repository, one line for each version. */
export function ModelList({ entries, current }: { entries: IndexEntry[]; current: string }) {
  const [wanted, want] = useState("");
  const shown = entries.filter((entry) => entry.name.toLowerCase().includes(wanted.toLowerCase()));
  return (
    <nav class="playground-models" aria-label="Models of the repository">
      {entries.length > 8 && (
        <input
          type="search"
          aria-label="Find a model"
          placeholder="Find a model"
          value={wanted}
          onInput={(event) => want(event.currentTarget.value)}
        />
      )}
      <ul>
        {shown.map((entry) => (
          <li key={`${entry.name} ${entry.version}`}>
            <a
              href={addressOf("playground", entry.name)}
              aria-current={entry.name === current ? "page" : undefined}
              title={entry.reason || undefined}
            >
              <span class="playground-name">{entry.name}</span>
              {entry.version && <span class="quiet">{entry.version}</span>}
              <State state={entry.state ?? ""} />
            </a>
          </li>
        ))}
      </ul>
      {shown.length === 0 && <p class="quiet">No model has this name.</p>}
    </nav>
  );
}

export function State({ state }: { state: string }) {
  const kind = state === "READY" ? "good" : state === "UNAVAILABLE" ? "bad" : "warning";
  const text = state ? state.toLowerCase() : "not loaded";
  return <span class={`playground-state ${kind}`}>{text}</span>;
}
