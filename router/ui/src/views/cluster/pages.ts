/** The pages of a worker by state, as shares of all of them. */
import type { WorkerEntry } from "../../api/live_state";

const STATES = ["active", "reserved", "held", "draining", "cached"] as const;

export function pageParts(worker: WorkerEntry): { state: string; num: number; share: number }[] {
  const total = Math.max(worker.num_pages, 1);
  return STATES.flatMap((state) => {
    const num = worker.pages[state] ?? 0;
    return num > 0 ? [{ state, num, share: num / total }] : [];
  });
}
