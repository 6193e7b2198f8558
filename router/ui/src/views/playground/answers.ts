/** What a model has answered: outputs of one response, or of each event of a stream. */
import { ApiError, type Asked, getJson, send } from "../../api/client";
import { eventsOf } from "../../api/events";
import { bodyOf, type Call, headersOf } from "./calls";
import { type Element, elementsFrom, stringsFrom } from "./tensors/datatypes";

export interface OutputTensor {
  name: string;
  datatype: string;
  shape: number[];
  elements: Element[];
  /** The elements of BYTES where they came as such. */
  raw: Uint8Array<ArrayBuffer>[] | null;
}

export interface StreamedResponse {
  at_ms: number;
  outputs: OutputTensor[];
}

export interface Answer {
  requestId: string;
  /** When each response came, since the request was sent; a call that does not stream has one. */
  responses: StreamedResponse[];
  total_ms: number | null;
}

export interface StepTimes {
  model: string;
  started_s: number;
  queue_s: number | null;
  compute_s: number | null;
  ended_s: number | null;
  outcome: string | null;
  instance: string | null;
  steps: StepTimes[];
}

export interface Explained {
  total_s: number | null;
  queue_s: number | null;
  steps?: StepTimes[];
}

interface JsonOutput {
  name: string;
  datatype: string;
  shape: number[];
  data?: Element[];
  parameters?: { binary_data_size?: number };
}

/** Sends `call` and calls `show` with what has come, again with each event of a stream. Throws ApiError. */
export async function ask(call: Call, abort: AbortSignal, show: (answer: Answer) => void): Promise<void> {
  const began = performance.now();
  const asked: Asked = { method: "POST", body: bodyOf(call), headers: headersOf(call), abort };
  if (call.kind === "generate_stream") asked.headers = { ...asked.headers, accept: "text/event-stream" };
  const response = await send(call.path, asked);
  let answer: Answer = { requestId: response.headers.get("x-request-id") ?? "", responses: [], total_ms: null };
  const add = (outputs: OutputTensor[]) => {
    answer = { ...answer, responses: [...answer.responses, { at_ms: performance.now() - began, outputs }] };
    show(answer);
  };
  if (call.kind === "generate_stream") for await (const event of eventsOf(response)) add(fieldOutputs(event.data));
  else if (call.kind === "generate") add(fieldOutputs(await response.text()));
  else add(await inferOutputs(response));
  show({ ...answer, total_ms: performance.now() - began });
}

/** Where the time of a request went; null where the router does not know (any more), or the key may not. */
export async function explanationOf(requestId: string): Promise<Explained | null> {
  try {
    return await getJson<Explained>(`v1/requests/${encodeURIComponent(requestId)}/explain`);
  } catch (error) {
    if (error instanceof ApiError) return null;
    throw error;
  }
}

async function inferOutputs(response: Response): Promise<OutputTensor[]> {
  const length = Number(response.headers.get("inference-header-content-length") ?? 0);
  if (!length) return jsonOutputs(await response.text());
  const bytes = new Uint8Array(await response.arrayBuffer());
  return outputsFrom(new TextDecoder().decode(bytes.subarray(0, length)), bytes.subarray(length));
}

function jsonOutputs(text: string): OutputTensor[] {
  return outputsFrom(text, new Uint8Array());
}

export function outputsFrom(head: string, binary: Uint8Array): OutputTensor[] {
  const { outputs = [] } = JSON.parse(head) as { outputs?: JsonOutput[] };
  let at = 0;
  return outputs.map((output) => {
    const { name, datatype, shape } = output;
    const size = output.parameters?.binary_data_size;
    if (size === undefined) return { name, datatype, shape, elements: output.data ?? [], raw: null };
    const bytes = binary.subarray(at, at + size);
    at += size;
    if (datatype !== "BYTES") return { name, datatype, shape, elements: elementsFrom(bytes, datatype), raw: null };
    const raw = stringsFrom(bytes);
    return { name, datatype, shape, elements: raw.map((one) => new TextDecoder().decode(one)), raw };
  });
}

const OF_THE_RESPONSE = new Set(["id", "model_name", "model_version", "sequence_id", "sequence_start", "sequence_end"]);

/** The outputs in a body of `generate`. Throws ApiError for one that says that the model has failed. */
export function fieldOutputs(text: string): OutputTensor[] {
  const fields = JSON.parse(text) as Record<string, unknown>;
  if (typeof fields.error === "string" && !("model_name" in fields)) throw new ApiError(200, fields.error);
  return Object.entries(fields)
    .filter(([name]) => !OF_THE_RESPONSE.has(name))
    .map(([name, value]) => {
      const elements = (Array.isArray(value) ? value : [value]) as Element[];
      const datatype = typeof elements[0] === "string" ? "BYTES" : typeof elements[0] === "boolean" ? "BOOL" : "FP64";
      return { name, datatype, shape: [elements.length], elements, raw: null };
    });
}
