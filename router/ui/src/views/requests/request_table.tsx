import type { RequestSummary } from "../../api/requests";
import { clock, duration } from "../../parts/format";
import { addressOf, Link } from "../../parts/routing";
import type { Filters } from "./filters";

interface Column {
  title: string;
  isNumber?: boolean;
  value: (one: RequestSummary) => string;
}

const GENERATION: readonly Column[] = [
  { title: "Model", value: (one) => one.model ?? "–" },
  { title: "Tenant", value: (one) => one.tenant || "–" },
  { title: "Prefill", value: (one) => one.prefill ?? (one.decode ? "local" : "–") },
  { title: "Decode", value: (one) => one.decode ?? "–" },
  { title: "Prompt", isNumber: true, value: (one) => String(one.num_prompt_tokens ?? "–") },
  { title: "Cached", isNumber: true, value: (one) => String(one.num_cached_tokens ?? "–") },
  { title: "Output", isNumber: true, value: (one) => String(one.num_output_tokens ?? "–") },
  { title: "Queued", isNumber: true, value: (one) => duration(one.queue_s) },
  { title: "TTFT", isNumber: true, value: (one) => duration(one.ttft_s) },
  { title: "ITL", isNumber: true, value: (one) => duration(one.itl_s) },
  { title: "Total", isNumber: true, value: (one) => duration(one.total_s) },
];

const INFER: readonly Column[] = [
  { title: "Model", value: (one) => one.model ?? "–" },
  { title: "Version", value: (one) => one.version ?? "–" },
  { title: "Tenant", value: (one) => one.tenant || "–" },
  { title: "Instance", value: (one) => one.instance ?? "–" },
  { title: "Rows", isNumber: true, value: (one) => String(one.num_rows ?? "–") },
  { title: "Responses", isNumber: true, value: (one) => String(one.num_responses ?? "–") },
  { title: "Queued", isNumber: true, value: (one) => duration(one.queue_s) },
  { title: "Total", isNumber: true, value: (one) => duration(one.total_s) },
];

/** One row a request. A link leads to its record; the arrow keys go from link to link. */
export function RequestTable({ requests, filters }: { requests: readonly RequestSummary[]; filters: Filters }) {
  const columns = filters.kind === "infer" ? INFER : GENERATION;
  return (
    <div class="wide">
      <table class="requests-table" onKeyDown={goToNeighbour}>
        <thead>
          <tr>
            <th scope="col">Time</th>
            <th scope="col">Request</th>
            <th scope="col">Outcome</th>
            {columns.map((column) => (
              <th key={column.title} scope="col" class={column.isNumber ? "number" : ""}>
                {column.title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {requests.map((one) => (
            <tr key={one.request_id} onClick={(event) => open(event, one, filters)}>
              <td>{clock(one.queued_at ?? one.received_at ?? "")}</td>
              <th scope="row" class="mono">
                <Link to="requests" item={one.request_id} query={filters}>
                  {one.request_id}
                </Link>
              </th>
              <td>
                <span class={`requests-outcome ${kindOf(one)}`}>{(one.outcome ?? one.phase).replaceAll("_", " ")}</span>
              </td>
              {columns.map((column) => (
                <td key={column.title} class={column.isNumber ? "number" : ""}>
                  {column.value(one)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** `good`, `quiet` or `bad`; "" while it runs. */
export function kindOf(one: Pick<RequestSummary, "outcome">): string {
  if (one.outcome === null) return "";
  if (["stop", "length", "success"].includes(one.outcome)) return "good";
  return ["abort", "cancelled"].includes(one.outcome) ? "quiet" : "bad";
}

function open(event: MouseEvent, one: RequestSummary, filters: Filters): void {
  const isOnLink = event.target instanceof Element && event.target.closest("a");
  if (!isOnLink && !getSelection()?.toString()) location.hash = addressOf("requests", one.request_id, filters);
}

function goToNeighbour(event: KeyboardEvent): void {
  const row = event.target instanceof Element ? event.target.closest("tbody tr") : null;
  const next = { ArrowDown: row?.nextElementSibling, ArrowUp: row?.previousElementSibling }[event.key];
  const link = next?.querySelector("a");
  if (!link) return;
  event.preventDefault();
  link.focus();
}
