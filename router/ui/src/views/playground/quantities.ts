/** Durations as people read them; empty where there is none. */
export function milliseconds(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined) return "";
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  const size = seconds * 1000;
  return `${size >= 100 ? size.toFixed(0) : size >= 10 ? size.toFixed(1) : size.toFixed(2)} ms`;
}
