import { useEffect, useRef, useState } from "preact/hooks";
import { latestRequests, type RequestSummary } from "../../api/requests";
import { textOf } from "../../parts/notices";
import { route } from "../../parts/routing";
import { completed, FilterForm, type Filters } from "./filters";
import { RequestTable } from "./request_table";

const REFRESH_MS = 2000;

/** The latest requests, read again while the page is visible. */
export function RequestList() {
  const filters = completed(Object.fromEntries(route.value.query));
  const query = new URLSearchParams(filters).toString();
  const [isPaused, setIsPaused] = useState(false);
  const { requests, problem } = useLatest(query, isPaused);
  // What once was among the requests can be chosen until the view is left.
  const seen = useRef({ tenants: new Set<string>(), models: new Set<string>(), outcomes: new Set<string>() });
  for (const one of requests ?? []) {
    if (one.tenant) seen.current.tenants.add(one.tenant);
    if (one.model) seen.current.models.add(one.model);
    if (one.outcome) seen.current.outcomes.add(one.outcome);
  }
  const { tenants, models, outcomes } = seen.current;
  return (
    <>
      <h2>Requests</h2>
      <div class="requests-bar">
        <FilterForm filters={filters} tenants={[...tenants]} models={[...models]} outcomes={[...outcomes]} />
        <button type="button" aria-pressed={isPaused} onClick={() => setIsPaused(!isPaused)}>
          {isPaused ? "Paused: go on" : "Pause"}
        </button>
      </div>
      {problem && <p role="alert">{problem}</p>}
      {requests === null && !problem && <p class="quiet">Loading …</p>}
      {requests?.length === 0 && <p class="quiet">{noneText(filters)}</p>}
      {requests && requests.length > 0 && <RequestTable requests={requests} filters={filters} />}
    </>
  );
}

function noneText({ kind, outcome, model, tenant }: Filters): string {
  if (outcome || model || tenant) return "There are no such requests.";
  return kind === "infer" ? "No tensor model has been asked yet." : "No text has been generated yet.";
}

function useLatest(query: string, isPaused: boolean) {
  const [requests, setRequests] = useState<RequestSummary[] | null>(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    if (isPaused) return;
    const abort = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const read = async () => {
      if (!document.hidden) {
        try {
          setRequests(await latestRequests(Object.fromEntries(new URLSearchParams(query)), abort.signal));
          setProblem("");
        } catch (error) {
          if (abort.signal.aborted) return;
          setProblem(textOf(error));
        }
      }
      if (!abort.signal.aborted) timer = setTimeout(read, REFRESH_MS);
    };
    void read();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [query, isPaused]);
  return { requests, problem };
}
