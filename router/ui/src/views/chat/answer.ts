/** An answer while it is streamed and afterwards, and what a browser measures of it. */
import { quantile } from "../../parts/format";

export interface ToolCall {
  id: string;
  name: string;
  args: string;
  result: string; // as a person gives it, for the next request
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  prompt_tokens_details?: { cached_tokens?: number } | null;
}

export interface Answer {
  model: string;
  content: string;
  reasoning: string;
  calls: ToolCall[];
  requestId: string;
  state: "running" | "finished" | "stopped" | "failed";
  finishReason: string;
  error: string;
  usage: Usage | null;
  times: AnswerTimes | null;
}

/** In seconds; of gaps between the pieces of text that reach the page. */
export interface AnswerTimes {
  ttftS: number;
  itlMeanS: number | null;
  itlP99S: number | null;
}

export interface Chunk {
  choices?: { delta?: Delta; finish_reason?: string | null }[];
  usage?: Usage | null;
  error?: { message: string };
}

export interface Delta {
  content?: string | null;
  reasoning_content?: string | null;
  reasoning?: string | null;
  tool_calls?: { index: number; id?: string; function?: { name?: string; arguments?: string } }[];
}

export function beginAnswer(model: string): Answer {
  const texts = { content: "", reasoning: "", requestId: "", finishReason: "", error: "" };
  return { model, ...texts, calls: [], state: "running", usage: null, times: null };
}

/** The answer with a chunk of its stream added. */
export function withChunk(answer: Answer, chunk: Chunk): Answer {
  const choice = chunk.choices?.[0];
  const delta = choice?.delta ?? {};
  return {
    ...answer,
    content: answer.content + (delta.content ?? ""),
    reasoning: answer.reasoning + (delta.reasoning_content ?? delta.reasoning ?? ""),
    calls: delta.tool_calls ? withCalls(answer.calls, delta.tool_calls) : answer.calls,
    finishReason: choice?.finish_reason ?? answer.finishReason,
    usage: chunk.usage ?? answer.usage,
  };
}

function withCalls(calls: readonly ToolCall[], deltas: NonNullable<Delta["tool_calls"]>): ToolCall[] {
  const after = [...calls];
  for (const { index, id, function: part } of deltas) {
    const before = after[index] ?? { id: "", name: "", args: "", result: "" };
    after[index] = {
      ...before,
      id: id ?? before.id,
      name: before.name + (part?.name ?? ""),
      args: before.args + (part?.arguments ?? ""),
    };
  }
  return after;
}

export function hasText(chunk: Chunk): boolean {
  const delta = chunk.choices?.[0]?.delta;
  return Boolean(delta?.content || delta?.reasoning_content || delta?.reasoning || delta?.tool_calls);
}

/** From when pieces arrived. The mean is over tokens, as several may come in one piece. */
export function timesOf(sentMs: number, arrivalsMs: readonly number[], numTokens: number | null): AnswerTimes | null {
  const first = arrivalsMs[0];
  const last = arrivalsMs.at(-1);
  if (first === undefined || last === undefined) return null;
  const gapsMs = arrivalsMs.slice(1).map((at, index) => at - (arrivalsMs[index] ?? at));
  const numGaps = (numTokens ?? arrivalsMs.length) - 1;
  const p99 = quantile(gapsMs, 0.99);
  return {
    ttftS: (first - sentMs) / 1000,
    itlMeanS: numGaps > 0 ? (last - first) / numGaps / 1000 : null,
    itlP99S: p99 === null ? null : p99 / 1000,
  };
}
