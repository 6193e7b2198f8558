/** The records of requests, as `/v1/requests` shows them. Times are in seconds since the request came. */
import { getJson } from "./client";

export interface RequestSummary {
  request_id: string;
  kind?: string;
  queued_at?: string;
  received_at?: string;
  phase: string;
  outcome: string | null;
  tenant: string;
  model: string | null;
  version: string | null;
  prefill?: string | null;
  decode?: string | null;
  instance?: string | null;
  num_attempts: number;
  num_prompt_tokens?: number;
  num_cached_tokens?: number | null;
  num_output_tokens?: number;
  num_rows?: number;
  num_responses?: number;
  queue_s: number | null;
  ttft_s?: number | null;
  itl_s?: number | null;
  total_s: number | null;
}

export interface Stage {
  stage: string;
  begin_s: number;
  end_s: number | null;
  where: string | null;
}

export interface Attempt {
  attempt: number;
  begin_s: number;
  end_s: number | null;
  prefill: string | null;
  decode: string | null;
  failure: string | null;
  stages: Stage[];
}

export interface Candidate {
  prefill: string | null;
  decode: string;
  chosen: boolean;
  fits: boolean;
  excluded: string | null;
  cost: number | null;
  terms: Record<string, number> | null;
  num_cached_tokens: number | null;
}

export interface Decision {
  attempt: number;
  at_s: number;
  policy: string;
  reason: string;
  why: string;
  prefill: string | null;
  decode: string;
  candidates: Candidate[];
}

export interface RequestEvent {
  at_s: number;
  phase: string;
  attempt: number;
  detail: string;
}

export interface Transfer {
  at_s: number;
  num_bytes: number;
  seconds: number;
}

export interface RequestFailure {
  kind: string;
  message: string;
  retry_after_s: number | null;
  figures: Record<string, number>;
}

/** The record of a request to a model of language. */
export interface Explanation extends RequestSummary {
  names: string[];
  why: string | null;
  max_output_tokens: number | null;
  sampling: Record<string, number> | null;
  trace_id: string | null;
  session_id: string | null;
  priority: number;
  attempts: Attempt[];
  decisions: Decision[];
  predictions: Record<string, { predicted: number | null; measured: number | null }>;
  transfer: Transfer | null;
  events: RequestEvent[];
  levels: { ttft_s: number; itl_s: number } | null;
  finish: { reason: string; error: RequestFailure | null } | null;
}

/** A request of an ensemble to one of its models. */
export interface Step {
  request_id: string;
  model: string;
  version: string;
  outcome: string | null;
  instance: string | null;
  started_s: number | null;
  queue_s: number | null;
  compute_s: number | null;
  ended_s: number | null;
  is_cache_hit: boolean;
  reads: string[];
  writes: string[];
  steps: Step[];
}

/** The record of a request to a tensor model. */
export interface InferExplanation extends RequestSummary {
  kind: "infer";
  client_id: string | null;
  parent_id: string | null;
  is_cache_hit: boolean;
  timeline: Record<string, number | null>;
  executions: { instance: string; at_s: number; batch_requests: number; batch_rows: number }[];
  steps: Step[];
  compute: { input_s: number; infer_s: number; output_s: number } | null;
  error: string | null;
}

export function isInfer(record: RequestSummary): record is InferExplanation {
  return record.kind === "infer";
}

/** `id` is that of an answer, or the `x-request-id` of a response. */
export function explanationOf(id: string, abort?: AbortSignal): Promise<Explanation | InferExplanation> {
  return getJson(`v1/requests/${encodeURIComponent(id)}/explain`, abort);
}

export async function latestRequests(filters: Record<string, string>, abort?: AbortSignal): Promise<RequestSummary[]> {
  const query = new URLSearchParams(Object.entries(filters).filter(([, value]) => value));
  return (await getJson<{ data: RequestSummary[] }>(`v1/requests?${query}`, abort)).data;
}
