import { duration } from "../../parts/format";
import type { Duration, ModelStatistics } from "./models";

const PARTS: readonly (readonly [string, string])[] = [
  ["queue", "Queue"],
  ["compute_input", "Input"],
  ["compute_infer", "Infer"],
  ["compute_output", "Output"],
];

/** Requests and mean times of each version of a model. */
export function StatisticsTable({ statistics }: { statistics: readonly ModelStatistics[] }) {
  if (!statistics.length) return null;
  return (
    <details open>
      <summary>Statistics</summary>
      <div class="wide">
        <table>
          <thead>
            <tr>
              <th scope="col">Version</th>
              <th scope="col">Succeeded</th>
              <th scope="col">Failed</th>
              <th scope="col">Executions</th>
              {PARTS.map(([name, title]) => (
                <th scope="col" key={name}>
                  {title} (mean)
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {statistics.map(({ version, inference_stats, execution_count }) => (
              <tr key={version}>
                <th scope="row">{version}</th>
                <td class="number">{inference_stats.success?.count ?? 0}</td>
                <td class="number">{inference_stats.fail?.count ?? 0}</td>
                <td class="number">{execution_count}</td>
                {PARTS.map(([name]) => (
                  <td class="number" key={name}>
                    {duration(meanOf(inference_stats[name]))}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </details>
  );
}

function meanOf(total: Duration | undefined): number | null {
  return total?.count ? Number(total.ns) / Number(total.count) / 1e9 : null;
}
