import { useEffect, useState } from "preact/hooks";
import type { Explained } from "./answers";
import { EnsembleGraph } from "./ensemble/ensemble_graph";
import { ModelForm } from "./model_form";
import { State } from "./model_list";
import { type IndexEntry, type Model, type ModelStatistics, stepsOf } from "./models";
import { OpenAiEndpoints } from "./openai_endpoints";
import { change, modelOf, statisticsOf } from "./repository";
import { StatisticsTable } from "./statistics_table";

interface Props {
  name: string;
  entries: IndexEntry[];
  isExplicit: boolean;
  onChanged: () => Promise<void>;
}

/** One model: its state, a form to ask it, its graph if it is an ensemble, its statistics and configuration. */
export function ModelPage({ name, entries, isExplicit, onChanged }: Props) {
  const [version, setVersion] = useState("");
  const [model, setModel] = useState<Model | null>(null);
  const [statistics, setStatistics] = useState<ModelStatistics[]>([]);
  const [explained, setExplained] = useState<Explained | null>(null);
  const [fault, setFault] = useState("");
  const isReady = entries.some((entry) => entry.state === "READY");

  useEffect(() => {
    const abort = new AbortController();
    setFault("");
    if (!isReady && entries.length) {
      setModel(null);
      return;
    }
    const read = async () => {
      try {
        setModel(await modelOf(name, version, abort.signal));
        setStatistics(await statisticsOf(name, version));
      } catch (error) {
        if (!abort.signal.aborted) setFault(error instanceof Error ? error.message : String(error));
      }
    };
    void read();
    return () => abort.abort();
  }, [name, version, isReady, entries.length]);

  const explain = async (one: Explained | null) => {
    setExplained(one);
    try {
      setStatistics(await statisticsOf(name, version));
    } catch {
      setStatistics([]); // the model has been unloaded meanwhile
    }
  };

  return (
    <article class="playground-model" aria-labelledby="model-heading">
      <header class="playground-head">
        <h3 id="model-heading">{name}</h3>
        {entries.map((entry) => (
          <span key={entry.version} class="playground-version">
            {entry.version && `version ${entry.version} `}
            <State state={entry.state ?? ""} />
          </span>
        ))}
        {model && <span class="quiet">{model.metadata.platform}</span>}
        {model && model.metadata.versions.length > 1 && (
          <label>
            <span>Version</span>
            <select value={version} onChange={(event) => setVersion(event.currentTarget.value)}>
              <option value="">as the server chooses</option>
              {model.metadata.versions.map((one) => (
                <option key={one}>{one}</option>
              ))}
            </select>
          </label>
        )}
        {isExplicit && <LoadButtons name={name} isReady={isReady} onChanged={onChanged} />}
      </header>
      {entries
        .filter((entry) => entry.reason)
        .map((entry) => (
          <p key={entry.version} class="playground-reason">
            {entry.version && `Version ${entry.version}: `}
            {entry.reason}
          </p>
        ))}
      {fault && <p role="alert">{fault}</p>}
      {model && stepsOf(model.config).length > 0 && <EnsembleGraph model={model} explained={explained} />}
      {model && <ModelForm key={`${name} ${version}`} model={model} version={version} onExplained={explain} />}
      {model && <OpenAiEndpoints model={name} />}
      {model && <Facts model={model} statistics={statistics} />}
    </article>
  );
}

function LoadButtons(props: { name: string; isReady: boolean; onChanged: () => Promise<void> }) {
  const { name, isReady, onChanged } = props;
  const [doing, setDoing] = useState("");
  const [fault, setFault] = useState("");
  const act = async (what: "load" | "unload") => {
    setDoing(what);
    setFault("");
    try {
      await change(name, what);
    } catch (error) {
      setFault(error instanceof Error ? error.message : String(error));
    }
    await onChanged();
    setDoing("");
  };
  return (
    <span class="playground-row">
      <button type="button" disabled={Boolean(doing)} onClick={() => void act("load")}>
        {doing === "load" ? "Loading…" : isReady ? "Load again" : "Load"}
      </button>
      {isReady && (
        <button type="button" disabled={Boolean(doing)} onClick={() => void act("unload")}>
          Unload
        </button>
      )}
      {fault && <span role="alert">{fault}</span>}
    </span>
  );
}

function Facts({ model, statistics }: { model: Model; statistics: ModelStatistics[] }) {
  return (
    <section class="playground-section" aria-label="Statistics and configuration">
      <StatisticsTable statistics={statistics} />
      <details>
        <summary>Configuration</summary>
        <pre class="playground-text">{JSON.stringify(withoutEmpty(model.config), null, 2)}</pre>
      </details>
    </section>
  );
}

/** A configuration has each field there is; those that say nothing are left out. */
function withoutEmpty(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withoutEmpty);
  if (!value || typeof value !== "object") return value;
  const fields = Object.entries(value)
    .map(([name, field]) => [name, withoutEmpty(field)] as const)
    .filter(([, field]) => field !== "" && field !== false && !isEmpty(field));
  return Object.fromEntries(fields);
}

function isEmpty(field: unknown): boolean {
  return typeof field === "object" && field !== null && Object.keys(field).length === 0;
}
