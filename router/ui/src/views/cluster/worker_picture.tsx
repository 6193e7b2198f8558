/** The workers as tiles with their load and pages, and what flows from prefill to decode. The table beside has the same
 * as text, so the picture is hidden from screen readers. */
import { memo } from "preact/compat";
import { useMemo, useRef } from "preact/hooks";
import type { Pair, WorkerEntry } from "../../api/live_state";
import { bytes } from "../../parts/format";
import { useWhileInSight } from "../../parts/in_sight";
import { addressOf } from "../../parts/routing";
import { useWidth } from "../../parts/width";
import { pageParts } from "./pages";
import { flowsOf, LEAST_WIDTH, layOut, MOST_WIDTH, type PictureLayout } from "./picture_layout";

interface PictureProps {
  workers: readonly WorkerEntry[];
  pairs: readonly Pair[];
  /** What flows along all pairs. */
  bytesPerS: number;
}

export function WorkerPicture(props: PictureProps) {
  const place = useRef<HTMLElement>(null);
  const shown = useWhileInSight(place, props);
  const width = useWidth(place, LEAST_WIDTH, MOST_WIDTH);
  return (
    <figure ref={place} class="cluster-picture">
      {shown.workers.length ? <Picture {...shown} width={width} /> : <p class="quiet">No worker is connected.</p>}
    </figure>
  );
}

const Picture = memo(function Picture({ workers, pairs, bytesPerS, width }: PictureProps & { width: number }) {
  const layout = layOut(workers, width);
  const flows = useMemo(() => flowsOf(layout, pairs), [workers.length, pairs, width]);
  return (
    <>
      <svg width={layout.width} height={layout.height} aria-hidden="true" focusable="false">
        {layout.prefill.length > 0 && <Caption x={0} text={`Prefill · ${layout.prefill.length}`} />}
        {layout.decode.length > 0 && <Caption x={layout.decodeX} text={`Decode · ${layout.decode.length}`} />}
        {bytesPerS > 0 && layout.decodeX > 0 && (
          <text class="cluster-flow-text" x={layout.decodeX - layout.flowWidth / 2} y={14} text-anchor="middle">
            {bytes(bytesPerS)}/s
          </text>
        )}
        {flows.map((flow) => (
          <path
            key={flow.key}
            class={layout.isLarge ? "cluster-flow cluster-moving" : "cluster-flow"}
            d={flow.path}
            stroke-width={(layout.isLarge ? 1 : 0.5) + (layout.isLarge ? 3 : 2) * flow.share}
          />
        ))}
        {[...layout.prefill, ...layout.decode].map((tile) => (
          <WorkerTile
            key={tile.worker.name}
            worker={tile.worker}
            x={tile.x}
            y={tile.y}
            width={layout.tileWidth}
            height={layout.tileHeight}
            isLarge={layout.isLarge}
          />
        ))}
      </svg>
      <PagesLegend layout={layout} />
    </>
  );
});

function Caption({ x, text }: { x: number; text: string }) {
  return (
    <text class="cluster-caption" x={x} y={14}>
      {text}
    </text>
  );
}

interface TileProps {
  worker: WorkerEntry;
  x: number;
  y: number;
  width: number;
  height: number;
  isLarge: boolean;
}

const INSET = 5;
const LABEL = 20;

/** Drawn again only if its worker has changed. */
const WorkerTile = memo(function WorkerTile({ worker, x, y, width, height, isLarge }: TileProps) {
  const inner = width - 2 * INSET;
  const load = worker.max_slots ? Math.min(1, (worker.max_slots - worker.free_slots) / worker.max_slots) : 0;
  const bar = isLarge ? 7 : 6;
  const loadY = isLarge ? INSET + LABEL : INSET;
  const pagesY = loadY + bar + 5;
  let from = INSET;
  return (
    <a href={addressOf("cluster", worker.name)} tabindex={-1} class={worker.is_draining ? "cluster-draining" : ""}>
      <g transform={`translate(${x} ${y})`}>
        <title>{tileText(worker)}</title>
        <rect class={`cluster-tile cluster-${worker.role}`} width={width} height={height} rx={5} />
        {isLarge && (
          <text class="cluster-name" x={INSET + 2} y={17}>
            {short(worker.name)}
          </text>
        )}
        <rect class="cluster-track" x={INSET} y={loadY} width={inner} height={bar} rx={2} />
        <rect class="cluster-load" x={INSET} y={loadY} width={inner * load} height={bar} rx={2} />
        <rect class="cluster-track" x={INSET} y={pagesY} width={inner} height={bar} rx={2} />
        {pageParts(worker).map(({ state, share }) => {
          const at = from;
          from += inner * share;
          return (
            <rect
              key={state}
              class={`cluster-pages-${state}`}
              x={at}
              y={pagesY}
              width={Math.max(0, inner * share)}
              height={bar}
            />
          );
        })}
      </g>
    </a>
  );
});

function short(name: string): string {
  return name.length > 16 ? `…${name.slice(-15)}` : name;
}

function tileText(worker: WorkerEntry): string {
  const state = worker.is_draining ? ", draining" : "";
  const pages = worker.num_pages ? `, ${worker.free_pages} of ${worker.num_pages} pages free` : "";
  return `${worker.name} (${worker.role}${state}): ${worker.num_requests} requests${pages}`;
}

function PagesLegend({ layout }: { layout: PictureLayout }) {
  const states = ["active", "reserved", "held", "draining", "cached"];
  return (
    <figcaption class="quiet">
      Upper bar: slots in use. Lower bar: KV pages
      {states.map((state) => (
        <span key={state} class={`cluster-key cluster-key-${state}`}>
          {state}
        </span>
      ))}
      {layout.prefill.length > 0 && <span class="cluster-key cluster-key-flow">pages on their way</span>}
    </figcaption>
  );
}
