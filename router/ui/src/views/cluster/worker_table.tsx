/** The workers as a table, with what may be done with each. */
import { memo } from "preact/compat";
import { useEffect, useRef } from "preact/hooks";
import { admin } from "../../api/admin";
import type { WorkerEntry } from "../../api/live_state";
import { count } from "../../parts/format";
import { useWhileInSight } from "../../parts/in_sight";
import { byName } from "../../parts/order";
import { runAction } from "./actions";
import { pageParts } from "./pages";

interface TableProps {
  workers: ReadonlyMap<string, WorkerEntry>;
  canAct: boolean;
  /** The worker whose row is shown. */
  chosen: string;
}

export function WorkerTable({ workers, canAct, chosen }: TableProps) {
  const sorted = byName(workers.values());
  const hasModels = sorted.some((worker) => worker.model !== sorted[0]?.model);
  return (
    <section class="cluster-table" aria-label="Workers">
      <h3>Workers</h3>
      <div class="wide">
        <table class="cluster-workers">
          <thead>
            <tr>
              <th scope="col">Name</th>
              {hasModels && <th scope="col">Model</th>}
              <th scope="col">Role</th>
              <th scope="col">State</th>
              <th scope="col" class="number">
                Requests
              </th>
              <th scope="col" class="number">
                Slots free
              </th>
              <th scope="col" class="number">
                Pages free
              </th>
              <th scope="col">Pages in use</th>
              <th scope="col" class="number">
                Waiting
              </th>
              <th scope="col">Version</th>
              {canAct && <th scope="col">Actions</th>}
            </tr>
          </thead>
          <tbody>
            {sorted.map((worker) => (
              <WorkerRow
                key={worker.name}
                worker={worker}
                hasModels={hasModels}
                canAct={canAct}
                isChosen={worker.name === chosen}
              />
            ))}
          </tbody>
        </table>
      </div>
    </section>
  );
}

interface CellsProps {
  worker: WorkerEntry;
  /** Whether there are workers of several models, so that each row names its own. */
  hasModels: boolean;
  canAct: boolean;
}

function WorkerRow(props: CellsProps & { isChosen: boolean }) {
  const { worker, hasModels, canAct, isChosen } = props;
  const row = useRef<HTMLTableRowElement>(null);
  const shown = useWhileInSight(row, worker);
  useEffect(() => {
    if (isChosen) row.current?.scrollIntoView({ block: "center" });
  }, [isChosen]);
  return (
    <tr ref={row} class={isChosen ? "cluster-chosen" : ""}>
      <WorkerCells worker={shown} hasModels={hasModels} canAct={canAct} />
    </tr>
  );
}

/** Drawn again only if the worker has changed. */
const WorkerCells = memo(function WorkerCells({ worker, hasModels, canAct }: CellsProps) {
  return (
    <>
      <th scope="row">{worker.name}</th>
      {hasModels && <td>{worker.model}</td>}
      <td>{worker.role}</td>
      <td class={worker.is_draining ? "warning" : ""}>{worker.is_draining ? "draining" : "serves"}</td>
      <td class="number">{worker.num_requests}</td>
      <td class="number">
        {worker.free_slots} of {worker.max_slots}
      </td>
      <td class="number">
        {count(worker.free_pages)} of {count(worker.num_pages)}
      </td>
      <td>{pagesText(worker)}</td>
      <td class="number">{worker.num_waiting ?? "–"}</td>
      <td class="mono">{worker.version.slice(0, 12)}</td>
      {canAct && (
        <td>
          <WorkerButtons worker={worker} />
        </td>
      )}
    </>
  );
});

function WorkerButtons({ worker }: { worker: WorkerEntry }) {
  const other = worker.role === "prefill" ? "decode" : "prefill";
  const switchRole = () =>
    runAction({
      title: `Let ${worker.name} serve as ${other}?`,
      about: "It takes no new requests until its own have moved or ended; its weights stay in memory.",
      button: "Switch role",
      run: () => admin.switchRole(worker.name, other),
      done: `${worker.name} becomes a ${other} worker.`,
    });
  const drain = () =>
    runAction({
      title: `Drain ${worker.name}?`,
      about: "Its requests move to other workers or end here, then it is stopped for good.",
      button: "Drain",
      isDangerous: true,
      run: () => admin.drain(worker.name),
      done: `${worker.name} is drained.`,
    });
  return (
    <span class="cluster-actions">
      <button type="button" class="plain" disabled={worker.is_draining} onClick={switchRole}>
        To {other}
        <span class="visually-hidden"> with {worker.name}</span>
      </button>
      <button type="button" class="plain" disabled={worker.is_draining} onClick={drain}>
        Drain
        <span class="visually-hidden"> {worker.name}</span>
      </button>
    </span>
  );
}

function pagesText(worker: WorkerEntry): string {
  return (
    pageParts(worker)
      .map(({ state, num }) => `${count(num)} ${state}`)
      .join(", ") || "none"
  );
}
