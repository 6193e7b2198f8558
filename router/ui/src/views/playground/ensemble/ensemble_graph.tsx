import { useMemo } from "preact/hooks";
import { duration } from "../../../parts/format";
import { addressOf } from "../../../parts/routing";
import type { Explained, StepTimes } from "../answers";
import { type EnsembleStep, type Model, stepsOf } from "../models";
import { graphOf, layoutOf, type PlacedNode } from "./ensemble_layout";

/** The steps of an ensemble with the tensors between them, as a picture and as a table, with the times of a request. */
export function EnsembleGraph({ model, explained }: { model: Model; explained: Explained | null }) {
  const layout = useMemo(() => layoutOf(graphOf(model)), [model]);
  const times = timesOf(stepsOf(model.config), explained);
  return (
    <section class="playground-section" aria-labelledby="ensemble-heading">
      <h3 id="ensemble-heading">Ensemble</h3>
      <figure class="playground-graph">
        <svg viewBox={`0 0 ${layout.width} ${layout.height}`} width={layout.width} height={layout.height}>
          <title>{`Graph of ${model.metadata.name}; the table below says the same`}</title>
          <defs>
            <marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">
              <path d="M 0 0 L 8 4 L 0 8 z" class="playground-arrow" />
            </marker>
          </defs>
          {layout.edges.map((edge) => (
            <path key={edge.path} d={edge.path} class="playground-edge" marker-end="url(#arrow)" />
          ))}
          {layout.edges.map((edge) => (
            <text key={edge.path} x={edge.label.x} y={edge.label.y} class="playground-edge-name" text-anchor="middle">
              {shortened(edge.tensor)}
            </text>
          ))}
          {layout.nodes.map((node) => (
            <Node key={node.id} node={node} times={times[node.step]} />
          ))}
        </svg>
      </figure>
      <StepTable steps={stepsOf(model.config)} times={times} total={explained?.total_s ?? null} />
    </section>
  );
}

function Node({ node, times }: { node: PlacedNode; times: StepTimes | undefined }) {
  const { x, y, width, height, label } = node;
  const box = (
    <rect x={x} y={y - height / 2} width={width} height={height} rx={node.kind === "step" ? 6 : height / 2} />
  );
  const middle = x + width / 2;
  if (node.kind !== "step") {
    return (
      <g class="playground-node playground-end">
        {box}
        <text x={middle} y={y + 4} text-anchor="middle">
          {label}
        </text>
      </g>
    );
  }
  const took = times ? duration((times.ended_s ?? times.started_s) - times.started_s) : "";
  return (
    <a
      class="playground-node"
      href={addressOf("playground", label)}
      aria-label={`Step ${node.step + 1}: ${label}${took ? `, ${took}` : ""}`}
    >
      {box}
      <text x={middle} y={took ? y - 3 : y + 4} text-anchor="middle">
        {label}
      </text>
      {took && (
        <text x={middle} y={y + 15} text-anchor="middle" class="playground-time">
          {took}
        </text>
      )}
    </a>
  );
}

function StepTable(props: { steps: EnsembleStep[]; times: (StepTimes | undefined)[]; total: number | null }) {
  const { steps, times, total } = props;
  const hasTimes = times.some(Boolean);
  return (
    <div class="wide">
      <table>
        <caption class="playground-caption">{hasTimes ? "Steps, with the times of the last request" : "Steps"}</caption>
        <thead>
          <tr>
            <th scope="col">Step</th>
            <th scope="col">Reads</th>
            <th scope="col">Writes</th>
            {hasTimes && <th scope="col">Queue</th>}
            {hasTimes && <th scope="col">Took</th>}
            {hasTimes && <th scope="col">When</th>}
          </tr>
        </thead>
        <tbody>
          {steps.map((step, index) => (
            <tr key={`${step.model_name} ${Object.values(step.output_map)}`}>
              <th scope="row">
                {index + 1}. {step.model_name}
              </th>
              <td>{namesOf(step.input_map, "←")}</td>
              <td>{namesOf(step.output_map, "→")}</td>
              {hasTimes && <td class="number">{duration(times[index]?.queue_s ?? null)}</td>}
              {hasTimes && <td class="number">{duration(tookOf(times[index]))}</td>}
              {hasTimes && (
                <td>
                  <Bar times={times[index]} total={total} />
                </td>
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Bar({ times, total }: { times: StepTimes | undefined; total: number | null }) {
  if (!times || !total) return null;
  const share = (seconds: number) => Math.max(0, Math.min(1, seconds / total)) * 160;
  const left = share(times.started_s);
  return (
    <svg width="160" height="10" aria-hidden="true">
      <rect class="playground-track" width="160" height="10" rx="2" />
      <rect class="playground-bar" x={left} width={Math.max(2, share(tookOf(times) ?? 0))} height="10" rx="2" />
    </svg>
  );
}

function tookOf(times: StepTimes | undefined): number | null {
  return times?.ended_s == null ? null : times.ended_s - times.started_s;
}

/** The times of each step, in the order of the configuration; a step that did not run has none. */
function timesOf(steps: readonly EnsembleStep[], explained: Explained | null): (StepTimes | undefined)[] {
  const left = [...(explained?.steps ?? [])];
  return steps.map((step) => {
    const at = left.findIndex((times) => times.model === step.model_name);
    return at < 0 ? undefined : left.splice(at, 1)[0];
  });
}

function namesOf(map: Record<string, string>, arrow: string): string {
  return Object.entries(map)
    .map(([own, tensor]) => (own === tensor ? own : arrow === "←" ? `${own} ← ${tensor}` : `${own} → ${tensor}`))
    .join(", ");
}

function shortened(name: string): string {
  return name.length > 14 ? `${name.slice(0, 13)}…` : name;
}
