import { useCallback, useEffect, useState } from "preact/hooks";
import { ApiError } from "../../api/client";
import { addressOf } from "../../parts/routing";
import { ModelList } from "./model_list";
import { ModelPage } from "./model_page";
import "./playground.css";
import type { IndexEntry } from "./models";
import { indexOf, isExplicit } from "./repository";

/** Models of a repository in Triton's layout, to look at and to ask. `item` is the name of one. */
export function PlaygroundView({ item }: { item: string }) {
  const [entries, setEntries] = useState<IndexEntry[] | null>(null);
  const [mayLoad, setMayLoad] = useState(false);
  const [fault, setFault] = useState<ApiError | null>(null);
  const read = useCallback(async () => {
    try {
      const [index, isOn] = await Promise.all([indexOf(), isExplicit()]);
      setEntries(index);
      setMayLoad(isOn);
      setFault(null);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      setFault(error);
    }
  }, []);
  useEffect(() => {
    void read();
  }, [read]);
  useEffect(() => {
    const isOnTheWay = entries?.some((entry) => entry.state === "LOADING" || entry.state === "UNLOADING");
    if (!isOnTheWay) return;
    const timer = setTimeout(() => void read(), 1000);
    return () => clearTimeout(timer);
  }, [entries, read]);

  return (
    <div class="playground">
      <h2>Playground</h2>
      {fault && <Fault fault={fault} onRetry={read} />}
      {fault?.status === 403 && <ModelByName />}
      {fault?.status === 403 && item && (
        <ModelPage key={item} name={item} entries={[]} isExplicit={false} onChanged={read} />
      )}
      {entries && entries.length === 0 && <p>The repository has no models.</p>}
      {entries && entries.length > 0 && (
        <div class="playground-columns">
          <ModelList entries={entries} current={item} />
          {item ? (
            <ModelPage
              key={item}
              name={item}
              entries={entries.filter((entry) => entry.name === item)}
              isExplicit={mayLoad}
              onChanged={read}
            />
          ) : (
            <p class="quiet">Choose a model to see its tensors and to send it a request.</p>
          )}
        </div>
      )}
    </div>
  );
}

/** For keys that may ask models and not list them. */
function ModelByName() {
  return (
    <form
      class="playground-row"
      onSubmit={(event) => {
        event.preventDefault();
        const name = String(new FormData(event.currentTarget).get("name") ?? "").trim();
        if (name) location.hash = addressOf("playground", name);
      }}
    >
      <label>
        <span>Model</span>
        <input name="name" type="text" required spellcheck={false} />
      </label>
      <button type="submit">Show it</button>
    </form>
  );
}

function Fault({ fault, onRetry }: { fault: ApiError; onRetry: () => Promise<void> }) {
  if (fault.status === 404) {
    return (
      <p>
        No model repository is served here. <code>slipstream serve --model-repository DIR</code> serves one.
      </p>
    );
  }
  return (
    <p role="alert">
      {fault.message}{" "}
      <button type="button" onClick={() => void onRetry()}>
        Try again
      </button>
    </p>
  );
}
