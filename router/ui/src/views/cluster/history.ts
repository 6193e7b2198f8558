/** What the plots show: one point a second, over the last minutes. */
import type { LiveState, ModelEntry } from "../../api/live_state";

export interface Point {
  time_s: number;
  tokens_per_s: number | null;
  requests_per_s: number;
  running: number;
  waiting: number;
  ttft_p50_s: number | null;
  ttft_p99_s: number | null;
  itl_p50_s: number | null;
  itl_p99_s: number | null;
  attainment: number | null;
}

export interface Sample {
  time_s: number;
  outputTokens: number;
}

export const MAX_POINTS = 300;

/** The state of the models as a point. `before` is the sample that the rate of tokens is counted from. */
export function pointOf(state: LiveState, time_s: number, before: Sample | null): Point {
  const models = [...state.models.values()];
  const tokens = tokensOf(state);
  const span_s = before ? time_s - before.time_s : 0;
  return {
    time_s,
    // A router that was started again counts from 0.
    tokens_per_s: before && span_s > 0 ? Math.max(0, tokens - before.outputTokens) / span_s : null,
    requests_per_s: sum(models, (one) => one.window.requests_per_s),
    running: sum(models, (one) => one.num_running),
    waiting: sum(models, (one) => one.num_waiting),
    ttft_p50_s: worst(models, (one) => one.window.ttft_p50_s),
    ttft_p99_s: worst(models, (one) => one.window.ttft_p99_s),
    itl_p50_s: worst(models, (one) => one.window.itl_p50_s),
    itl_p99_s: worst(models, (one) => one.window.itl_p99_s),
    attainment: lowest(models),
  };
}

export function tokensOf(state: LiveState): number {
  return sum([...state.models.values()], (one) => one.totals.output_tokens);
}

/** The points with one more, without those that are too old. */
export function withPoint(points: readonly Point[], point: Point): Point[] {
  return [...points.slice(-(MAX_POINTS - 1)), point];
}

function sum(models: ModelEntry[], of: (model: ModelEntry) => number): number {
  return models.reduce((total, one) => total + of(one), 0);
}

/** Of the model that is slowest; null where nothing was measured. */
function worst(models: ModelEntry[], of: (model: ModelEntry) => number): number | null {
  return Math.max(0, ...models.map(of)) || null;
}

function lowest(models: ModelEntry[]): number | null {
  const shares = models.flatMap((one) => (one.window.attainment === null ? [] : [one.window.attainment]));
  return shares.length ? Math.min(...shares) : null;
}
