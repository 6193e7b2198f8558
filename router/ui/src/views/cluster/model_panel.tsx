/** One model: its requests, queue and levels, and the picture of its workers. */
import { useState } from "preact/hooks";
import { admin } from "../../api/admin";
import type { LiveState, ModelEntry } from "../../api/live_state";
import { bytes, count, duration, percent } from "../../parts/format";
import { runAction } from "./actions";
import { ScaleDialog } from "./scale_dialog";
import { UpdateDialog } from "./update_dialog";
import { WorkerPicture } from "./worker_picture";

export function ModelPanel({ model, state }: { model: ModelEntry; state: LiveState }) {
  const [dialog, setDialog] = useState<"scale" | "update" | "">("");
  const workers = [...state.workers.values()].filter(
    (worker) => worker.model === model.name || state.models.size === 1,
  );
  const names = new Set(workers.map((worker) => worker.name));
  const pairs = state.transfers.pairs.filter(([prefill]) => names.has(prefill));
  const bytesPerS = pairs.reduce((sum, pair) => sum + pair[3], 0) / state.transfers.span_s;
  return (
    <section class="cluster-model" aria-label={`Model ${model.name}`}>
      <header>
        <h3>{model.name}</h3>
        <span class={model.ready ? "good" : "warning"}>{model.ready ? "ready" : model.unready_because}</span>
        <span class="quiet">{model.versions.map(versionText).join(", ")}</span>
        {state.router?.calls_admin && (
          <div class="buttons end">
            <button type="button" onClick={() => setDialog("scale")}>
              Scale
            </button>
            <button type="button" onClick={() => setDialog("update")}>
              Update
            </button>
            {state.models.size > 1 && (
              <button type="button" class="danger" onClick={() => remove(model.name)}>
                Remove
              </button>
            )}
          </div>
        )}
      </header>
      <dl class="cluster-figures">
        <Figure name="Requests" value={`${count(model.window.requests_per_s)}/s`} />
        <Figure name="Running" value={count(model.num_running)} />
        <Figure name="Waiting" value={count(model.num_waiting)} about={waitText(model)} />
        <Figure
          name="TTFT p50 / p99"
          value={`${measured(model.window.ttft_p50_s)} / ${measured(model.window.ttft_p99_s)}`}
          about={`level ${duration(model.slo.ttft_s)}`}
        />
        <Figure
          name="ITL p50 / p99"
          value={`${measured(model.window.itl_p50_s)} / ${measured(model.window.itl_p99_s)}`}
          about={`level ${duration(model.slo.itl_s)}`}
        />
        <Figure name="Kept their levels" value={percent(model.window.attainment)} />
        <Figure name="From cache" value={percent(model.window.cached_share)} />
        <Figure
          name="Pages sent"
          value={`${bytes(bytesPerS)}/s`}
          about={`${bytes(model.totals.transfer_bytes)} in all`}
        />
      </dl>
      <WorkerPicture workers={workers} pairs={pairs} bytesPerS={bytesPerS} />
      <Queue model={model} />
      {dialog === "scale" && <ScaleDialog model={model.name} workers={workers} onClose={() => setDialog("")} />}
      {dialog === "update" && <UpdateDialog model={model.name} onClose={() => setDialog("")} />}
    </section>
  );
}

function Figure({ name, value, about = "" }: { name: string; value: string; about?: string }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd>
        {value} {about && <small class="quiet">{about}</small>}
      </dd>
    </div>
  );
}

/** Who waits and runs, by class and by tenant. */
function Queue({ model }: { model: ModelEntry }) {
  const classes = Object.entries(model.queue_depth).filter(([, num]) => num > 0);
  const tenants = Object.entries(model.tenants);
  const phases = Object.entries(model.phases).filter(([, num]) => num > 0);
  if (!classes.length && !tenants.length && !phases.length) return <p class="quiet">No requests now.</p>;
  return (
    <div class="cluster-queues">
      <Bars title="Requests by phase" rows={phases} />
      <Bars title="Waiting by class" rows={classes.map(([name, num]) => [`class ${name}`, num])} />
      <Bars title="Requests by tenant" rows={tenants.map(([name, num]) => [name || "(no name)", num])} />
    </div>
  );
}

function Bars({ title, rows }: { title: string; rows: [string, number][] }) {
  if (!rows.length) return null;
  const most = Math.max(...rows.map(([, num]) => num));
  return (
    <table>
      <caption>{title}</caption>
      <tbody>
        {rows.map(([name, num]) => (
          <tr key={name}>
            <th scope="row">{name}</th>
            <td class="number">{count(num)}</td>
            <td aria-hidden="true">
              <progress max={most} value={num} tabIndex={-1} />
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function versionText(version: ModelEntry["versions"][number]): string {
  const name = version.name || "one version";
  if (version.is_mirror) return `${name} (mirror)`;
  return version.weight === null ? name : `${name} (weight ${count(version.weight)})`;
}

function measured(seconds: number): string {
  return seconds ? duration(seconds) : "–";
}

function waitText(model: ModelEntry): string {
  return model.num_waiting ? `the oldest for ${duration(model.oldest_wait_s)}` : "";
}

function remove(name: string): void {
  void runAction({
    title: `Remove ${name}?`,
    about: "Its requests may end, then its workers are stopped.",
    button: "Remove",
    isDangerous: true,
    run: () => admin.removeModel(name),
    done: `${name} is gone.`,
  });
}
