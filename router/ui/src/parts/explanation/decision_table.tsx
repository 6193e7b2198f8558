import type { Candidate, Decision } from "../../api/requests";
import { duration } from "../format";

const SMALLEST_TERM_S = 1e-6;

/** The alternatives of a placement, best first, with what each was predicted to cost. */
export function DecisionTable({ decision }: { decision: Decision }) {
  const costs = decision.candidates.map((one) => one.cost ?? 0);
  const most = Math.max(...costs, SMALLEST_TERM_S);
  const names = termNames(decision.candidates);
  return (
    <details open>
      <summary>
        Alternatives at {duration(decision.at_s)} (policy {decision.policy || "–"},{" "}
        {decision.reason.replaceAll("_", " ")})
      </summary>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: a table that is wider than the page is scrolled by keys */}
      <section class="wide" aria-label="Alternatives" tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th scope="col">Way</th>
              <th scope="col" class="number">
                Cost
              </th>
              <th scope="col">
                <span class="visually-hidden">Cost beside the others</span>
              </th>
              {names.map((name) => (
                <th key={name} scope="col" class="number">
                  {name.replaceAll("_", " ")}
                </th>
              ))}
              <th scope="col" class="number">
                Cached
              </th>
              <th scope="col">Remark</th>
            </tr>
          </thead>
          <tbody>
            {decision.candidates.map((one) => (
              <tr key={`${one.prefill} ${one.decode}`} class={one.chosen ? "chosen" : ""}>
                <th scope="row">{wayOf(one)}</th>
                <td class="number">{duration(one.cost)}</td>
                <td>
                  <meter class="cost" min={0} max={most} value={one.cost ?? 0} aria-hidden="true" />
                </td>
                {names.map((name) => (
                  <td key={name} class="number">
                    {signed(one.terms?.[name])}
                  </td>
                ))}
                <td class="number">{one.num_cached_tokens ?? 0}</td>
                <td>{one.chosen ? "chosen" : (one.excluded ?? (one.fits ? "" : "no room"))}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </section>
    </details>
  );
}

function wayOf(one: Candidate): string {
  return one.prefill ? `${one.prefill} → ${one.decode}` : `local on ${one.decode}`;
}

/** The parts of the costs that are not 0 for all. */
function termNames(candidates: readonly Candidate[]): string[] {
  const names = new Set<string>();
  for (const one of candidates) {
    for (const [name, value] of Object.entries(one.terms ?? {})) {
      if (Math.abs(value) >= SMALLEST_TERM_S) names.add(name);
    }
  }
  return [...names];
}

function signed(seconds: number | undefined): string {
  if (seconds === undefined || Math.abs(seconds) < SMALLEST_TERM_S) return "0";
  return seconds < 0 ? `−${duration(-seconds)}` : duration(seconds);
}
