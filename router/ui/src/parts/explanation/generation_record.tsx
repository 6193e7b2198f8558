import type { Explanation, RequestFailure } from "../../api/requests";
import { bytes, duration, percent } from "../format";
import { DecisionTable } from "./decision_table";
import { Facts } from "./facts";
import { Timeline } from "./timeline";
import { layoutOf } from "./timeline_layout";

/** A request to a model of language: where its time went, what else it could have done, and what came true. */
export function GenerationRecord({ record }: { record: Explanation }) {
  return (
    <div class="explanation">
      {record.why && <p>{record.why}</p>}
      {record.finish?.error && <Failure error={record.finish.error} />}
      <Facts
        facts={[
          ["Outcome", record.outcome ?? record.phase],
          ["Model", `${record.model ?? "–"}${record.version ? `@${record.version}` : ""}`],
          ["Tenant", record.tenant],
          ["Prompt", promptOf(record)],
          ["Output", record.num_output_tokens ? `${record.num_output_tokens} tokens` : null],
          ["Total", duration(record.total_s)],
          ["Attempts", record.num_attempts > 1 ? String(record.num_attempts) : null],
          [
            "Hand-off",
            record.transfer && `${bytes(record.transfer.num_bytes)} in ${duration(record.transfer.seconds)}`,
          ],
          ["Session", record.session_id],
          ["Trace", record.trace_id],
        ]}
      />
      {record.attempts.length > 0 && <Timeline layout={layoutOf(record)} />}
      {record.phase !== "refused" && <Predictions record={record} />}
      {record.decisions.map((decision) => (
        <DecisionTable key={`${decision.attempt} ${decision.at_s}`} decision={decision} />
      ))}
      <Events record={record} />
    </div>
  );
}

function promptOf(record: Explanation): string | null {
  const num = record.num_prompt_tokens;
  if (num === undefined) return null;
  const cached = record.num_cached_tokens ?? 0;
  return `${num} tokens${cached && num ? `, ${percent(cached / num)} from the cache` : ""}`;
}

function Failure({ error }: { error: RequestFailure }) {
  const figures = Object.entries(error.figures);
  return (
    <div class="failure">
      <p>
        <strong>{error.kind}</strong>: {error.message}
      </p>
      {figures.length > 0 && <Facts facts={figures.map(([name, value]) => [name, String(value)] as const)} />}
    </div>
  );
}

const PREDICTED = [
  ["ttft_s", "TTFT"],
  ["itl_s", "ITL (mean)"],
  ["output_tokens", "Output tokens"],
  ["cached_tokens", "Cached tokens"],
] as const;

function Predictions({ record }: { record: Explanation }) {
  return (
    <div class="wide">
      <table>
        <caption>Predicted at the placement, and measured</caption>
        <thead>
          <tr>
            <th />
            <th scope="col" class="number">
              Predicted
            </th>
            <th scope="col" class="number">
              Measured
            </th>
            <th scope="col" class="number">
              Level
            </th>
          </tr>
        </thead>
        <tbody>
          {PREDICTED.map(([key, name]) => {
            const shown = key.endsWith("_s") ? duration : whole;
            const level = record.levels && key in record.levels ? record.levels[key as "ttft_s" | "itl_s"] : null;
            return (
              <tr key={key}>
                <th scope="row">{name}</th>
                <td class="number">{shown(record.predictions[key]?.predicted)}</td>
                <td class="number">{shown(record.predictions[key]?.measured)}</td>
                <td class="number">{level === null ? "" : duration(level)}</td>
              </tr>
            );
          })}
        </tbody>
      </table>
    </div>
  );
}

function whole(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : String(Math.round(value));
}

function Events({ record }: { record: Explanation }) {
  if (!record.events.length) return null;
  return (
    <details>
      <summary>Events</summary>
      <ol class="events">
        {record.events.map((event) => (
          <li key={`${event.at_s} ${event.phase} ${event.detail}`}>
            <span class="at">{duration(event.at_s)}</span>
            <strong>{event.phase.replace("_", " ")}</strong>
            <span>{event.detail}</span>
          </li>
        ))}
      </ol>
    </details>
  );
}
