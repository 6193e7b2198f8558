/** The cluster as it is now, and what an administrator may change. */
import { signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { follow, live, liveProblem } from "../../api/live";
import { EMPTY, type LiveState } from "../../api/live_state";
import "./cluster.css";
import { ClusterPlots } from "./cluster_plots";
import { FleetPanel } from "./fleet_panel";
import { type Point, pointOf, type Sample, tokensOf, withPoint } from "./history";
import { ModelPanel } from "./model_panel";
import { RepositoryPanel } from "./repository_panel";
import { WorkerTable } from "./worker_table";

const points = signal<Point[]>([]);
let before: Sample | null = null;

const PERIOD_MS = 1000;

/** One point for each event, as its figures are those of the time when it came. */
function addPoint(state: LiveState): void {
  if (state.router === null) return;
  const time_s = Date.now() / 1000;
  points.value = withPoint(points.value, pointOf(state, time_s, before));
  before = { time_s, outputTokens: tokensOf(state) };
}

/** Where nothing changes, no event comes, and the lines go on as they were. */
function addPointIfQuiet(): void {
  const last = points.value.at(-1);
  const time_s = Date.now() / 1000;
  if (!last || liveProblem.value || time_s - last.time_s < (1.5 * PERIOD_MS) / 1000) return;
  points.value = withPoint(points.value, pointOf(live.value, time_s, before));
}

export function ClusterView({ item }: { item: string }) {
  useEffect(() => {
    const leaving = new AbortController();
    void follow(leaving.signal);
    const unsubscribe = live.subscribe(addPoint);
    const filling = setInterval(addPointIfQuiet, PERIOD_MS);
    return () => {
      leaving.abort();
      unsubscribe();
      clearInterval(filling);
      live.value = EMPTY;
      points.value = [];
      before = null;
    };
  }, []);
  const state = live.value;
  return (
    <>
      <Heading state={state} problem={liveProblem.value} />
      {state.router && (
        <>
          {state.models.size > 0 && <ClusterPlots points={points} />}
          {[...state.models.values()].map((model) => (
            <ModelPanel key={model.name} model={model} state={state} />
          ))}
          {state.workers.size > 0 && (
            <WorkerTable workers={state.workers} canAct={state.router.calls_admin} chosen={item} />
          )}
          {state.router.calls_admin && <FleetPanel />}
          {state.repository && <RepositoryPanel repository={state.repository} state={state} />}
        </>
      )}
    </>
  );
}

function Heading({ state, problem }: { state: LiveState; problem: string }) {
  const router = state.router;
  return (
    <div class="cluster-head">
      <h2>Cluster</h2>
      <p role="status">
        {router === null && !problem && <span class="quiet">Connecting …</span>}
        {router && !problem && (
          <span class={router.ready ? "good" : "warning"}>
            {router.ready ? "Ready" : `Not ready: ${router.unready_because}`}
          </span>
        )}
        {problem && <span class="bad">{problem}</span>}
      </p>
      {router && <p class="quiet">Slipstream {router.slipstream}</p>}
    </div>
  );
}
