import { services } from "../../api/services";
import { addressOf, replaceAddress } from "../../parts/routing";

/** As in the address and in the query of `/v1/requests`. */
export type Filters = Record<string, string>;

/** With the kind: as chosen, or that of the models there are. */
export function completed(filters: Filters): Filters {
  const hasOnlyTensorModels = services.value?.models.every((card) => card.kinds) ?? false;
  return { ...filters, kind: filters.kind || (hasOnlyTensorModels ? "infer" : "generate") };
}

const OUTCOMES_OF_GENERATION = [
  "queued",
  "prefill",
  "decode",
  "stop",
  "length",
  "abort",
  "refused",
  "queue_timeout",
  "worker_failed",
];
const OUTCOMES_OF_INFER = ["queued", "executing", "success", "failed", "rejected", "cancelled"];
const LIMITS = ["50", "200", "1000"];

interface FiltersProps {
  filters: Filters;
  tenants: readonly string[];
  models: readonly string[];
  outcomes: readonly string[];
}

export function FilterForm({ filters, tenants, models, outcomes }: FiltersProps) {
  const set = (name: string) => (value: string) =>
    replaceAddress(addressOf("requests", "", { ...filters, [name]: value }));
  const usual = filters.kind === "infer" ? OUTCOMES_OF_INFER : OUTCOMES_OF_GENERATION;
  const known = services.value?.models.map((card) => card.root ?? card.id) ?? [];
  return (
    <fieldset class="requests-filters">
      <legend class="visually-hidden">Filters</legend>
      <Choice
        title="Kind"
        value={filters.kind ?? ""}
        options={["generate", "infer"]}
        all={null}
        names={{ generate: "Generation", infer: "Tensor models" }}
        onChange={(kind) => replaceAddress(addressOf("requests", "", { kind, limit: filters.limit ?? "" }))}
      />
      <Choice
        title="Outcome"
        value={filters.outcome ?? ""}
        options={[...usual, ...outcomes]}
        onChange={set("outcome")}
      />
      <Choice title="Model" value={filters.model ?? ""} options={[...known, ...models]} onChange={set("model")} />
      <Choice title="Tenant" value={filters.tenant ?? ""} options={tenants} onChange={set("tenant")} />
      <Choice title="Latest" value={filters.limit ?? ""} options={LIMITS.slice(1)} all="50" onChange={set("limit")} />
    </fieldset>
  );
}

interface ChoiceProps {
  title: string;
  value: string;
  options: readonly string[];
  /** What the choice of none is called; null: there is no such choice. */
  all?: string | null;
  names?: Record<string, string>;
  onChange: (value: string) => void;
}

function Choice({ title, value, options, all = "All", names = {}, onChange }: ChoiceProps) {
  const shown = new Set([...options, value].filter(Boolean));
  return (
    <label class="field">
      {title}
      <select value={value} onChange={(event) => onChange(event.currentTarget.value)}>
        {all !== null && <option value="">{all}</option>}
        {[...shown].map((one) => (
          <option key={one} value={one}>
            {names[one] ?? one.replaceAll("_", " ")}
          </option>
        ))}
      </select>
    </label>
  );
}
