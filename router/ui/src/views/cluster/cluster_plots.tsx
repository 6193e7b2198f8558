/** Rates, latencies and attainment over the last minutes. */
import type { ReadonlySignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { count, duration, percent } from "../../parts/format";
import { useWhileInSight } from "../../parts/in_sight";
import { theme } from "../../parts/theme";
import type { Point } from "./history";

interface Line {
  label: string;
  colour: string;
  of: (point: Point) => number | null;
}

interface Plot {
  title: string;
  lines: Line[];
  shown: (value: number) => string;
  /** What the axis shows at least, and its fixed end. */
  least: number;
  max?: number;
}

const PLOTS: readonly Plot[] = [
  {
    title: "Output tokens a second",
    lines: [{ label: "tokens/s", colour: "--stage-decode", of: (point) => point.tokens_per_s }],
    shown: count,
    least: 1,
  },
  {
    title: "Requests",
    lines: [
      { label: "running", colour: "--stage-prefill", of: (point) => point.running },
      { label: "waiting", colour: "--stage-transfer", of: (point) => point.waiting },
    ],
    shown: count,
    least: 1,
  },
  {
    title: "TTFT",
    lines: [
      { label: "p50", colour: "--stage-prefill", of: (point) => point.ttft_p50_s },
      { label: "p99", colour: "--stage-transfer", of: (point) => point.ttft_p99_s },
    ],
    shown: duration,
    least: 0.001,
  },
  {
    title: "Kept their levels",
    lines: [{ label: "share", colour: "--stage-decode", of: (point) => point.attainment }],
    shown: percent,
    least: 1,
    max: 1,
  },
];
const HEIGHT = 110;
const SPAN_S = 300;

/** Reads the points itself, so that a new one draws nothing else again. */
export function ClusterPlots({ points }: { points: ReadonlySignal<readonly Point[]> }) {
  return (
    <section class="cluster-plots" aria-label="Last minutes">
      {PLOTS.map((plot) => (
        <PlotCard key={plot.title} plot={plot} points={points.value} />
      ))}
    </section>
  );
}

function PlotCard({ plot, points }: { plot: Plot; points: readonly Point[] }) {
  const place = useRef<HTMLDivElement>(null);
  const drawn = useRef<uPlot | null>(null);
  const shown = useWhileInSight(place, points);
  const colours = theme.value;
  useEffect(() => {
    const element = place.current;
    if (!element) return;
    const chart = new uPlot(optionsOf(plot, element), [[]], element);
    drawn.current = chart;
    const resized = new ResizeObserver(() => chart.setSize({ width: element.clientWidth, height: HEIGHT }));
    resized.observe(element);
    const system = matchMedia("(prefers-color-scheme: dark)");
    const redraw = () => chart.redraw();
    system.addEventListener("change", redraw);
    return () => {
      system.removeEventListener("change", redraw);
      resized.disconnect();
      chart.destroy();
    };
  }, [plot, colours]);
  useEffect(() => {
    drawn.current?.setData([shown.map((point) => point.time_s), ...plot.lines.map((line) => shown.map(line.of))]);
  }, [shown, plot, colours]);
  const last = points.at(-1);
  return (
    <figure class="cluster-plot">
      <figcaption>
        <span>{plot.title}</span>
        {plot.lines.map((line) => {
          const value = last ? line.of(last) : null;
          return (
            <span key={line.label} class="cluster-legend" style={{ "--swatch": `var(${line.colour})` }}>
              <span class="quiet">{line.label}</span> {value === null ? "–" : plot.shown(value)}
            </span>
          );
        })}
      </figcaption>
      <div ref={place} aria-hidden="true" />
    </figure>
  );
}

function optionsOf(plot: Plot, element: HTMLElement): uPlot.Options {
  const colour = (name: string) => () => colourOf(element, name);
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
  return {
    width: Math.max(100, element.clientWidth),
    height: HEIGHT,
    legend: { show: false },
    cursor: { show: false },
    scales: {
      x: { range: (_, __, max) => spanUntil(max ?? Date.now() / 1000) },
      y: { range: (_, __, max) => [0, plot.max ?? Math.max((max ?? 0) * 1.1, plot.least)] },
    },
    axes: [
      { ...axis, size: 22, space: 70, values: (_, marks) => marks.map(timeOf) },
      { ...axis, size: 54, space: 28, values: (_, marks) => marks.map((mark) => (mark ? plot.shown(mark) : "0")) },
    ],
    series: [
      {},
      ...plot.lines.map((line) => ({
        stroke: colour(line.colour),
        width: 1.5,
        points: { show: false },
        spanGaps: true,
      })),
    ],
  };
}

function spanUntil(end_s: number): [number, number] {
  return [end_s - SPAN_S, end_s];
}

/** What a variable is now, as canvas takes it. */
function colourOf(element: HTMLElement, name: string): string {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  element.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}

function timeOf(unix_s: number): string {
  return new Date(unix_s * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
}
