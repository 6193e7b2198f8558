import type { InferExplanation, Step } from "../../api/requests";
import { duration } from "../format";
import { Link } from "../routing";
import { Facts } from "./facts";
import { Timeline } from "./timeline";
import { inferLayoutOf } from "./timeline_layout";

/** A request to a tensor model: its executions, and the steps of an ensemble. */
export function InferRecord({ record }: { record: InferExplanation }) {
  const { compute } = record;
  return (
    <div class="explanation">
      {record.error && <p class="failure">{record.error}</p>}
      <Facts
        facts={[
          ["Outcome", record.outcome ?? record.phase],
          ["Model", `${record.model}, version ${record.version}`],
          ["Tenant", record.tenant],
          ["Rows", String(record.num_rows ?? "")],
          ["Responses", String(record.num_responses ?? "")],
          ["Total", duration(record.total_s)],
          ["Queued", duration(record.queue_s)],
          ["Input", compute && duration(compute.input_s)],
          ["Compute", compute && duration(compute.infer_s)],
          ["Output", compute && duration(compute.output_s)],
          ["Cache", record.is_cache_hit ? "answered from the response cache" : null],
          ["Client's id", record.client_id],
        ]}
      />
      {record.parent_id && (
        <p>
          Made by the model that serves{" "}
          <Link to="requests" item={record.parent_id}>
            {record.parent_id}
          </Link>
          .
        </p>
      )}
      <Timeline layout={inferLayoutOf(record)} />
      {record.steps.length > 0 && <Steps steps={record.steps} />}
      {record.executions.length > 0 && <Executions record={record} />}
    </div>
  );
}

function Executions({ record }: { record: InferExplanation }) {
  return (
    <details>
      <summary>Executions</summary>
      <ol class="events">
        {record.executions.map((one) => (
          <li key={one.at_s}>
            <span class="at">{duration(one.at_s)}</span>
            <strong>{one.instance}</strong>
            <span>
              batch of {one.batch_requests} requests, {one.batch_rows} rows
            </span>
          </li>
        ))}
      </ol>
    </details>
  );
}

function Steps({ steps }: { steps: Step[] }) {
  return (
    <details open>
      <summary>Steps</summary>
      <ol class="events">
        {steps.map((step) => (
          <li key={step.request_id}>
            <span class="at">{duration(step.started_s)}</span>
            <strong>{step.model}</strong>
            <span>
              {step.reads.join(", ")} → {step.writes.join(", ")}; waited {duration(step.queue_s)}, computed{" "}
              {step.is_cache_hit ? "nothing (response cache)" : duration(step.compute_s)}
              {step.instance ? ` on ${step.instance}` : ""}
              {step.steps.length > 0 && <Steps steps={step.steps} />}
            </span>
          </li>
        ))}
      </ol>
    </details>
  );
}
