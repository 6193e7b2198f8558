import { useRef } from "preact/hooks";
import { duration } from "../format";
import { useWidth } from "../width";
import { type TimelineLayout, ticksOf } from "./timeline_layout";

const ROW_HEIGHT = 30;
const AXIS_HEIGHT = 24;
const LEFT = { wide: 150, narrow: 84 }; // for the names of places
const RIGHT = 24;
const LEAST_WIDTH = 280;
const MOST_WIDTH = 960;
const NARROW_WIDTH = 560;
const TICK_WIDTH = 64;

/** The stages of a request by where they were, in time. The table below the picture says the same. */
export function Timeline({ layout }: { layout: TimelineLayout }) {
  const { rows, bars, totalS } = layout;
  const place = useRef<HTMLElement>(null);
  const width = useWidth(place, LEAST_WIDTH, MOST_WIDTH);
  return (
    <figure ref={place} class="timeline">
      <TimelinePicture layout={layout} width={width} />
      <div class="wide">
        <table>
          <thead>
            <tr>
              <th scope="col">Stage</th>
              <th scope="col">Where</th>
              <th scope="col" class="number">
                From
              </th>
              <th scope="col" class="number">
                Took
              </th>
            </tr>
          </thead>
          <tbody>
            {bars.map((bar) => (
              <tr key={`${bar.row} ${bar.label} ${bar.beginS}`}>
                <td>
                  <span class={`swatch ${bar.stage} ${bar.isBehind ? "behind" : ""}`} /> {bar.label}
                </td>
                <td>{rows[bar.row]}</td>
                <td class="number">{duration(bar.beginS)}</td>
                <td class="number">{duration(bar.endS - bar.beginS)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <figcaption class="visually-hidden">Stages of {duration(totalS)} in all</figcaption>
    </figure>
  );
}

function TimelinePicture({ layout, width }: { layout: TimelineLayout; width: number }) {
  const { rows, bars, marks, totalS } = layout;
  const height = rows.length * ROW_HEIGHT + AXIS_HEIGHT;
  const left = width < NARROW_WIDTH ? LEFT.narrow : LEFT.wide;
  const room = width - left - RIGHT;
  const numLetters = Math.floor(left / 6.5);
  const x = (seconds: number) => left + (seconds / totalS) * room;
  const inOrder = [...bars.filter((bar) => bar.isBehind), ...bars.filter((bar) => !bar.isBehind)];
  return (
    <svg width={width} height={height} aria-hidden="true">
      {ticksOf(totalS, Math.min(5, Math.floor(room / TICK_WIDTH))).map((tick) => (
        <g key={tick}>
          <line class="grid" x1={x(tick)} x2={x(tick)} y1={0} y2={height - AXIS_HEIGHT + 4} />
          <text class="tick" x={x(tick)} y={height - 5} text-anchor="middle">
            {tick ? duration(tick) : "0"}
          </text>
        </g>
      ))}
      {rows.map((row, index) => (
        <text key={row} class="place" x={left - 10} y={index * ROW_HEIGHT + 19} text-anchor="end">
          {row.length > numLetters ? `${row.slice(0, numLetters - 1)}…` : row}
        </text>
      ))}
      {inOrder.map((bar) => (
        <rect
          key={`${bar.row} ${bar.label} ${bar.beginS}`}
          class={`bar ${bar.stage} ${bar.isBehind ? "behind" : ""}`}
          x={x(bar.beginS)}
          y={bar.row * ROW_HEIGHT + 6}
          width={Math.max(2, x(bar.endS) - x(bar.beginS))}
          height={ROW_HEIGHT - 12}
          rx={3}
        >
          <title>{`${bar.label}: ${duration(bar.endS - bar.beginS)} from ${duration(bar.beginS)}`}</title>
        </rect>
      ))}
      {marks.map((mark) => (
        <line
          key={`${mark.label} ${mark.atS}`}
          class="mark"
          x1={x(mark.atS)}
          x2={x(mark.atS)}
          y1={0}
          y2={height - AXIS_HEIGHT}
        >
          <title>{`${mark.label}: ${duration(mark.atS)}`}</title>
        </line>
      ))}
    </svg>
  );
}
