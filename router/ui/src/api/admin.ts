/** Calls of the admin API, which the router forwards with the administrator's token. */
import { adminToken, send } from "./client";
import type { Role } from "./live_state";

export interface Member {
  name: string;
  role: Role;
  state: string;
  for_s: number;
  host: string;
  version: string;
  detail: string;
  is_leaving: boolean;
  model: string;
}

export interface Fleet {
  num_prefill: number;
  num_decode: number;
  max_members: number | null;
  is_changing: boolean;
  members: Member[];
  warning: string | null;
}

export interface Decision {
  number: number;
  unix_s: number;
  reason: string;
  why: string;
  num_prefill: number;
  num_decode: number;
  actions: { action: string; name?: string; role?: Role; count?: number }[];
  failed: string[];
  model?: string;
}

export interface Decisions {
  enabled: boolean;
  decisions: Decision[];
}

export interface Update {
  is_active: boolean;
  line: string;
  reason: string;
  figures: string;
}

async function call<T>(method: "GET" | "POST", path: string, body?: unknown, abort?: AbortSignal): Promise<T> {
  const response = await send(`ui/admin/v1/${path}`, { method, body, abort, secret: adminToken });
  return response.json() as Promise<T>;
}

const ofModel = (model: string) => `?model=${encodeURIComponent(model)}`;
const ofWorker = (name: string) => `workers/${encodeURIComponent(name)}`;

export const admin = {
  fleet: (abort?: AbortSignal) => call<Fleet>("GET", "fleet", undefined, abort),
  decisions: (abort?: AbortSignal) => call<Decisions>("GET", "planner/decisions?last=30", undefined, abort),
  update: (model: string, abort?: AbortSignal) => call<Update>("GET", `update${ofModel(model)}`, undefined, abort),
  scale: (model: string, role: Role, replicas: number) => call<Fleet>("POST", "fleet/scale", { model, role, replicas }),
  drain: (worker: string) => call<Fleet>("POST", `${ofWorker(worker)}/drain`, { migrate: true }),
  switchRole: (worker: string, role: Role) => call<Fleet>("POST", `${ofWorker(worker)}/role`, { role }),
  beginUpdate: (model: string, config: string, split: number | null) =>
    call<Update>("POST", `update${ofModel(model)}`, { config, split }),
  rollBack: (model: string) => call<Update>("POST", `update/rollback${ofModel(model)}`),
  addModels: (config: string) => call<{ added: string[] }>("POST", "models", { config }),
  removeModel: (name: string) => call<unknown>("POST", `models/${encodeURIComponent(name)}/remove`),
  setInstances: (model: string, count: number) => call<unknown>("POST", `instances${ofModel(model)}`, { count }),
};
