/** Numbers as people read them. */
export function count(value: number): string {
  if (Math.abs(value) < 10_000) return Number.isInteger(value) ? String(value) : value.toFixed(value < 10 ? 1 : 0);
  const units = ["", "k", "M", "G", "T"];
  let unit = 0;
  let rest = value;
  while (Math.abs(rest) >= 1000 && unit < units.length - 1) {
    rest /= 1000;
    unit += 1;
  }
  return `${rest.toFixed(rest < 100 ? 1 : 0)}${units[unit]}`;
}

export function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let rest = value;
  while (rest >= 1024 && unit < units.length - 1) {
    rest /= 1024;
    unit += 1;
  }
  return `${unit && rest < 100 ? rest.toFixed(1) : Math.round(rest)} ${units[unit]}`;
}

export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds === 0) return "0 s";
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${(seconds * 1000).toFixed(seconds < 0.1 ? 1 : 0)} ms`;
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
}

export function percent(share: number | null | undefined): string {
  return share === null || share === undefined
    ? "–"
    : `${(100 * share).toFixed(share > 0.995 || share < 0.1 ? 1 : 0)} %`;
}

/** The time of day of an ISO date, or of milliseconds since 1970. */
export function clock(at: string | number): string {
  return new Date(at).toLocaleTimeString();
}

/** The value at a share of the sorted values (nearest rank); null without values. */
export function quantile(values: readonly number[], share: number): number | null {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.min(sorted.length - 1, Math.max(0, Math.ceil(share * sorted.length) - 1))] ?? null;
}
