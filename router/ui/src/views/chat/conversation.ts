/** The conversation of this tab: one column a model, and each has its own answers to the same messages. */
import { type Signal, signal } from "@preact/signals";
import { send } from "../../api/client";
import { eventsOf } from "../../api/events";
import { dismissErrors, noteError, textOf } from "../../parts/notices";
import { type Answer, beginAnswer, type Chunk, hasText, timesOf, withChunk } from "./answer";
import { DEFAULTS, fieldsOf, type Settings } from "./settings";

export interface Turn {
  id: string;
  text: string; // "" where only results of tools are sent
  answers: Signal<Answer>[]; // by column
}

const STORED_AS = "slipstream-chat";
export const MAX_COLUMNS = 4;

export const columns = signal<string[]>([]);
export const settings = signal<Settings>(DEFAULTS);
export const turns = signal<Turn[]>([]);
/** How many answers are being streamed. */
export const numRunning = signal(0);

let abort = new AbortController();

export function stop(): void {
  abort.abort();
  abort = new AbortController();
}

/** Asks all columns. Wrong settings are said, and nothing is sent. */
export function ask(text: string): boolean {
  const fields = checkedFields();
  if (fields) begin(turns.value, text, fields);
  return fields !== null;
}

function begin(earlier: readonly Turn[], text: string, fields: Record<string, unknown>): void {
  const turn: Turn = {
    id: `${Date.now()}-${earlier.length}`,
    text,
    answers: columns.value.map((model) => signal(beginAnswer(model))),
  };
  turns.value = [...earlier, turn];
  for (const column of turn.answers.keys()) void run(turn, column, fields);
}

/** Asks one column for another answer to the last message. */
export function regenerate(turn: Turn, column: number): void {
  const fields = checkedFields();
  const answer = turn.answers[column];
  if (!fields || !answer) return;
  answer.value = beginAnswer(columns.value[column] ?? answer.value.model);
  void run(turn, column, fields);
}

/** Forgets a message and what came after it, and asks another one in its place. */
export function resend(turn: Turn, text: string): void {
  const fields = checkedFields();
  if (!fields) return;
  stop();
  begin(turns.value.slice(0, turns.value.indexOf(turn)), text, fields);
}

export function clear(): void {
  stop();
  turns.value = [];
  store();
}

function checkedFields(): Record<string, unknown> | null {
  try {
    const fields = fieldsOf(settings.value);
    dismissErrors(); // of the try before
    return fields;
  } catch (error) {
    noteError(error);
    return null;
  }
}

async function run(turn: Turn, column: number, fields: Record<string, unknown>): Promise<void> {
  const shown = turn.answers[column];
  if (!shown) return;
  const { signal: aborted } = abort;
  numRunning.value += 1;
  const stream = new AnswerStream(shown);
  try {
    const messages = messagesBefore(turn, column);
    const usage = { stream: true, stream_options: { include_usage: true } };
    await stream.follow({ ...fields, model: shown.value.model, messages, ...usage }, aborted);
    stream.end("finished");
  } catch (error) {
    if (aborted.aborted) stream.end("stopped");
    else stream.end("failed", textOf(error));
  } finally {
    numRunning.value -= 1;
    store();
  }
}

/** Takes the chunks of one answer, and shows them once a frame. */
class AnswerStream {
  private answer: Answer;
  private readonly sentMs = performance.now();
  private readonly arrivalsMs: number[] = [];
  private frame = 0;

  constructor(private readonly shown: Signal<Answer>) {
    this.answer = shown.value;
  }

  async follow(body: unknown, aborted: AbortSignal): Promise<void> {
    const response = await send("v1/chat/completions", { method: "POST", body, abort: aborted });
    this.answer = { ...this.answer, requestId: response.headers.get("x-request-id") ?? "" };
    for await (const event of eventsOf(response)) {
      if (event.data === "[DONE]") return;
      const chunk = JSON.parse(event.data) as Chunk;
      if (chunk.error) throw new Error(chunk.error.message);
      this.add(chunk);
    }
    throw new Error("The connection ended before the answer did.");
  }

  private add(chunk: Chunk): void {
    if (hasText(chunk)) this.arrivalsMs.push(performance.now());
    this.answer = withChunk(this.answer, chunk);
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.shown.value = this.answer;
    });
  }

  end(state: Answer["state"], error = ""): void {
    cancelAnimationFrame(this.frame);
    const times = timesOf(this.sentMs, this.arrivalsMs, this.answer.usage?.completion_tokens ?? null);
    this.shown.value = { ...this.answer, state, error, times };
  }
}

/** The messages of a request: those of the column so far, and the turn's own. */
export function messagesBefore(turn: Turn, column: number): Record<string, unknown>[] {
  const messages: Record<string, unknown>[] = [];
  if (settings.value.system.trim()) messages.push({ role: "system", content: settings.value.system });
  for (const one of turns.value) {
    if (one.text) messages.push({ role: "user", content: one.text });
    if (one === turn) break;
    const answer = one.answers[column]?.value;
    if (answer && (answer.content || answer.calls.length)) messages.push(...messagesOf(answer));
  }
  return messages;
}

/** An answer as history: its calls are followed by their results. */
function messagesOf(answer: Answer): Record<string, unknown>[] {
  const calls = answer.finishReason === "tool_calls" ? answer.calls : []; // those that were cut off are no history
  const tool_calls = calls.map(({ id, name, args }) => ({ id, type: "function", function: { name, arguments: args } }));
  const results = calls.map(({ id, result }) => ({ role: "tool", tool_call_id: id, content: result }));
  return [{ role: "assistant", content: answer.content, ...(calls.length ? { tool_calls } : {}) }, ...results];
}

/** As it is kept and exported. */
export function exported(): Record<string, unknown> {
  const all = turns.value.map(({ id, text, answers }) => ({ id, text, answers: answers.map((one) => one.value) }));
  return { columns: columns.value, settings: settings.value, turns: all };
}

export function store(): void {
  try {
    sessionStorage.setItem(STORED_AS, JSON.stringify(exported()));
  } catch {
    // The conversation is longer than the browser keeps. It lasts until the page is left.
  }
}

addEventListener("pagehide", () => {
  stop(); // or the browser would, and the answers would be kept as failed
  store();
});

/** What was kept; an answer that was being written has what it had. */
export function restore(): void {
  const kept = JSON.parse(sessionStorage.getItem(STORED_AS) ?? "null");
  if (!kept || turns.value.length) return;
  columns.value = kept.columns.length ? kept.columns : columns.value;
  settings.value = { ...DEFAULTS, ...kept.settings };
  turns.value = kept.turns.map((turn: { id: string; text: string; answers: Answer[] }) => ({
    ...turn,
    answers: turn.answers.map((one) => signal({ ...one, state: one.state === "running" ? "stopped" : one.state })),
  }));
}
