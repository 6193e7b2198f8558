/** The state of the cluster as the router sends it, and what an event changes of it. */

export type Role = "prefill" | "decode";

export interface RouterEntry {
  slipstream: string;
  ready: boolean;
  unready_because: string | null;
  /** Whether calls of the admin API are forwarded. */
  calls_admin: boolean;
}

/** The last seconds. Latencies are in seconds; shares are null where nothing ended. */
export interface WindowEntry {
  span_s: number;
  requests_per_s: number;
  num_refused: number;
  num_failed: number;
  ttft_p50_s: number;
  ttft_p99_s: number;
  itl_p50_s: number;
  itl_p99_s: number;
  queue_p99_s: number;
  cached_share: number;
  attainment: number | null;
  ttft_attainment: number | null;
  itl_attainment: number | null;
}

export interface VersionEntry {
  name: string;
  weight: number | null;
  is_live: boolean;
  is_mirror: boolean;
}

export interface ModelEntry {
  name: string;
  ready: boolean;
  unready_because: string | null;
  num_waiting: number;
  num_running: number;
  phases: Record<string, number>;
  queue_depth: Record<string, number>;
  oldest_wait_s: number;
  tenants: Record<string, number>;
  slo: { ttft_s: number; itl_s: number };
  window: WindowEntry;
  versions: VersionEntry[];
  totals: { prompt_tokens: number; output_tokens: number; transfer_bytes: number; transfers: number; retries: number };
}

export interface WorkerEntry {
  name: string;
  model: string;
  role: Role;
  version: string;
  tp: number;
  is_draining: boolean;
  num_requests: number;
  max_slots: number;
  free_slots: number;
  num_pages: number;
  free_pages: number;
  free_tokens: number;
  num_running: number | null;
  num_waiting: number | null;
  pages: Record<string, number>;
}

export interface InstancesEntry {
  model: string;
  version: string;
  count: number;
  hosts: Record<string, number>;
  latest: string;
}

export interface RepositoryEntry {
  ready: boolean;
  control_mode: string;
  models: { name: string; version: string; state: string; reason: string }[];
  instances: InstancesEntry[];
}

export type Pair = [prefill: string, decode: string, num: number, bytes: number];

/** Hand-offs that landed in the last `span_s` seconds. */
export interface TransfersEntry {
  span_s: number;
  pairs: Pair[];
}

export interface LiveState {
  router: RouterEntry | null;
  models: ReadonlyMap<string, ModelEntry>;
  workers: ReadonlyMap<string, WorkerEntry>;
  transfers: TransfersEntry;
  repository: RepositoryEntry | null;
}

export const EMPTY: LiveState = {
  router: null,
  models: new Map(),
  workers: new Map(),
  transfers: { span_s: 10, pairs: [] },
  repository: null,
};

export interface Changes {
  set: Record<string, unknown>;
  removed?: string[];
}

/** The state after an event. What has not changed stays the same object, so that its tile is not drawn again. */
export function withEvent(before: LiveState, name: string, changes: Changes): LiveState {
  const from = name === "whole" ? EMPTY : before;
  const models = new Map(from.models);
  const workers = new Map(from.workers);
  const after = { ...from, models, workers };
  for (const [key, entry] of Object.entries(changes.set)) {
    const slash = key.indexOf("/");
    const item = slash < 0 ? "" : key.slice(slash + 1);
    if (key.startsWith("model/")) models.set(item, entry as ModelEntry);
    else if (key.startsWith("worker/")) workers.set(item, entry as WorkerEntry);
    else if (key === "router") after.router = entry as RouterEntry;
    else if (key === "transfers") after.transfers = entry as TransfersEntry;
    else if (key === "repository") after.repository = entry as RepositoryEntry;
  }
  for (const key of changes.removed ?? []) {
    if (key.startsWith("model/")) models.delete(key.slice("model/".length));
    else if (key.startsWith("worker/")) workers.delete(key.slice("worker/".length));
    else if (key === "transfers") after.transfers = EMPTY.transfers;
    else if (key === "repository") after.repository = null;
  }
  return after;
}
