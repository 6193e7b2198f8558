import { useEffect, useRef, useState } from "preact/hooks";
import type { OutputTensor } from "../answers";
import { isNumeric } from "./datatypes";
import { imagePlaces, shown, sizeOf } from "./shapes";

type Form = "text" | "table" | "plot" | "heat map" | "image" | "JSON";

const MAX_CELLS = 400;
const MAX_TEXT = 100_000;

/** One output: as a text, a table, a line, a heat map or an image, whichever fits its shape first. */
export function OutputView({ output }: { output: OutputTensor }) {
  const forms = formsOf(output);
  const [chosen, choose] = useState<Form | null>(null);
  const form = chosen && forms.includes(chosen) ? chosen : forms[0];
  return (
    <section class="playground-output" aria-label={`Output ${output.name}`}>
      <header>
        <h4>{output.name}</h4>
        <span class="quiet">
          {output.datatype} {shown(output.shape)}
        </span>
        {forms.length > 1 && (
          <label>
            <span>Show as</span>
            <select value={form} onChange={(event) => choose(event.currentTarget.value as Form)}>
              {forms.map((one) => (
                <option key={one}>{one}</option>
              ))}
            </select>
          </label>
        )}
      </header>
      {form === "text" && <pre class="playground-text">{textOf(output)}</pre>}
      {form === "table" && <TableForm output={output} />}
      {form === "plot" && <PlotForm output={output} />}
      {form === "heat map" && <PixelForm output={output} draw={drawHeatMap} what="Heat map" />}
      {form === "image" && <PixelForm output={output} draw={drawImage} what="Image" />}
      {form === "JSON" && <pre class="playground-text">{jsonOf(output)}</pre>}
    </section>
  );
}

export function formsOf(output: OutputTensor): Form[] {
  const { datatype, elements } = output;
  const forms: Form[] = [];
  const isPicture = output.raw?.some(isPictureFile) || (isNumeric(datatype) && imagePlaces(output.shape) !== null);
  if (isPicture) forms.push("image");
  if (datatype === "BYTES" && elements.length === 1) forms.push("text");
  if (isNumeric(datatype)) {
    const [height, width] = sidesOf(output);
    if (height >= 4 && width >= 4) forms.push("heat map");
    if (height === 1 && width >= 16) forms.push("plot");
  }
  forms.push("table", "JSON");
  return forms;
}

/** Rows and columns: the last two dimensions; those before them are joined to the rows. */
export function sidesOf({ shape }: OutputTensor): [number, number] {
  const width = shape.at(-1) ?? 1;
  return [width ? sizeOf(shape) / width : 0, width];
}

function textOf({ elements }: OutputTensor): string {
  const text = String(elements[0] ?? "");
  return text.length > MAX_TEXT ? `${text.slice(0, MAX_TEXT)}…` : text;
}

function jsonOf({ name, datatype, shape, elements }: OutputTensor): string {
  const data = elements.slice(0, 10_000).map((one) => (typeof one === "bigint" ? String(one) : one));
  return JSON.stringify({ name, datatype, shape, data }) + (elements.length > 10_000 ? " …" : "");
}

function TableForm({ output }: { output: OutputTensor }) {
  const [height, width] = sidesOf(output);
  const numColumns = Math.min(width, 16);
  const numRows = Math.min(height, Math.max(1, Math.floor(MAX_CELLS / numColumns)));
  const columns = Array.from({ length: numColumns }, (_, column) => column);
  return (
    <div class="wide">
      <table class="playground-values">
        <thead>
          <tr>
            <th scope="col">
              <span class="visually-hidden">Row</span>
            </th>
            {columns.map((column) => (
              <th scope="col" key={column}>
                {column}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {Array.from({ length: numRows }, (_, row) => (
            <tr key={row}>
              <th scope="row">{row}</th>
              {columns.map((column) => (
                <td key={column} class={isNumeric(output.datatype) ? "number" : undefined}>
                  {shownElement(output.elements[row * width + column])}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {(numRows < height || numColumns < width) && (
        <p class="quiet">
          The first {numRows} of {height} rows and {numColumns} of {width} columns.
        </p>
      )}
    </div>
  );
}

function shownElement(element: unknown): string {
  if (typeof element === "number" && !Number.isInteger(element)) return String(Number(element.toPrecision(6)));
  return String(element ?? "");
}

function PlotForm({ output }: { output: OutputTensor }) {
  const values = output.elements.map(Number);
  const [least, most] = boundsOf(values);
  const x = (index: number) => 4 + (index / Math.max(1, values.length - 1)) * 632;
  const y = (value: number) => 116 - ((value - least) / (most - least || 1)) * 112;
  const points = values.map((value, index) => `${x(index).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  return (
    <figure class="playground-figure">
      <svg viewBox="0 0 640 120" role="img" aria-label={`${values.length} values from ${least} to ${most}`}>
        {least < 0 && most > 0 && <line class="playground-zero" x1="4" x2="636" y1={y(0)} y2={y(0)} />}
        <polyline class="playground-line" points={points} />
      </svg>
      <figcaption class="quiet">
        {values.length} values from {shownElement(least)} to {shownElement(most)}
      </figcaption>
    </figure>
  );
}

type Draw = (canvas: HTMLCanvasElement, output: OutputTensor) => Promise<void> | void;

function PixelForm({ output, draw, what }: { output: OutputTensor; draw: Draw; what: string }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  useEffect(() => {
    if (canvas.current) void draw(canvas.current, output);
  }, [output, draw]);
  return (
    <figure class="playground-figure">
      <canvas ref={canvas} role="img" aria-label={`${what} of ${output.name}, ${shown(output.shape)}`} />
      {what === "Heat map" && <Bounds output={output} />}
    </figure>
  );
}

function Bounds({ output }: { output: OutputTensor }) {
  const [least, most] = boundsOf(output.elements.map(Number));
  return (
    <figcaption class="quiet">
      From {shownElement(least)} (light) to {shownElement(most)} (dark)
    </figcaption>
  );
}

function boundsOf(values: readonly number[]): [number, number] {
  let least = Number.POSITIVE_INFINITY;
  let most = Number.NEGATIVE_INFINITY;
  for (const value of values) {
    if (!Number.isFinite(value)) continue;
    least = Math.min(least, value);
    most = Math.max(most, value);
  }
  return least <= most ? [least, most] : [0, 0];
}

function drawHeatMap(canvas: HTMLCanvasElement, output: OutputTensor): void {
  const [height, width] = sidesOf(output);
  const [least, most] = boundsOf(output.elements.map(Number));
  paint(canvas, width, Math.min(height, 1024), (row, column) => {
    const share = (Number(output.elements[row * width + column]) - least) / (most - least || 1);
    return [244 - 233 * share, 247 - 149 * share, 251 - 37 * share];
  });
}

async function drawImage(canvas: HTMLCanvasElement, output: OutputTensor): Promise<void> {
  const file = output.raw?.find(isPictureFile);
  if (file) {
    const picture = await createImageBitmap(new Blob([file]));
    canvas.width = picture.width;
    canvas.height = picture.height;
    canvas.getContext("2d")?.drawImage(picture, 0, 0);
    return;
  }
  const places = imagePlaces(output.shape);
  if (!places || places.channels === null) return;
  const [height, width] = [output.shape[places.height] ?? 0, output.shape[places.width] ?? 0];
  const numChannels = output.shape[places.channels] ?? 1;
  const isFirst = places.channels < places.height;
  const [least, most] = boundsOf(output.elements.map(Number));
  const isByte = most > 2 && least >= 0;
  const level = (value: number) =>
    isByte ? value : ((value - Math.min(0, least)) / (most - Math.min(0, least) || 1)) * 255;
  paint(canvas, width, height, (row, column) => {
    const at = (channel: number) => {
      const index = isFirst
        ? (channel * height + row) * width + column
        : (row * width + column) * numChannels + channel;
      return level(Number(output.elements[index]));
    };
    return numChannels < 3 ? [at(0), at(0), at(0)] : [at(0), at(1), at(2)];
  });
}

type Colour = (row: number, column: number) => [number, number, number];

function paint(canvas: HTMLCanvasElement, width: number, height: number, colour: Colour): void {
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  if (!context || !width || !height) return;
  const pixels = context.createImageData(width, height);
  for (let row = 0; row < height; row++) {
    for (let column = 0; column < width; column++) {
      pixels.data.set([...colour(row, column), 255], (row * width + column) * 4);
    }
  }
  context.putImageData(pixels, 0, 0);
}

const PICTURES: readonly (readonly number[])[] = [
  [0x89, 0x50, 0x4e, 0x47],
  [0xff, 0xd8, 0xff],
  [0x47, 0x49, 0x46, 0x38],
  [0x52, 0x49, 0x46, 0x46],
];

function isPictureFile(bytes: Uint8Array): boolean {
  return PICTURES.some((start) => start.every((byte, at) => bytes[at] === byte));
}
