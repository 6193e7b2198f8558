/** The live state of the cluster. It is read while a view shows it. */
import { signal } from "@preact/signals";
import { ApiError, send } from "./client";
import { eventsOf } from "./events";
import { type Changes, EMPTY, type LiveState, withEvent } from "./live_state";

export const live = signal<LiveState>(EMPTY);
/** Why there is nothing new; "" while the stream goes on. */
export const liveProblem = signal("");

const RETRY_MS = 2000;
const PATIENCE_MS = 30_000; // the router sends a comment every 10 s where there is nothing new
const FINAL = [401, 403, 404]; // trying again would change nothing

/** Follows the cluster until `abort`, through restarts of the router. */
export async function follow(abort: AbortSignal): Promise<void> {
  while (!abort.aborted) {
    try {
      const response = await send("cluster/live", { abort, headers: { accept: "text/event-stream" } });
      for await (const event of eventsOf(response, PATIENCE_MS)) {
        live.value = withEvent(live.value, event.name, JSON.parse(event.data) as Changes);
        liveProblem.value = "";
      }
      liveProblem.value = "The router has closed the stream. Connecting again …";
    } catch (error) {
      if (abort.aborted) return;
      const problem = error instanceof Error ? error.message : String(error);
      const isFinal = error instanceof ApiError && FINAL.includes(error.status);
      liveProblem.value = isFinal ? problem : `${problem}. Connecting again …`;
      if (isFinal) return;
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}
