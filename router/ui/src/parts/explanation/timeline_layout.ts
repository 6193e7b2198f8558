/** Where the stages of a request stand in a picture of its time. Times are in seconds since the request came. */
import type { Attempt, Explanation, InferExplanation, Step } from "../../api/requests";

export interface Bar {
  stage: string;
  row: number;
  beginS: number;
  endS: number;
  label: string;
  /** It goes on beside other stages, so that it is drawn behind them. */
  isBehind?: boolean;
}

export interface Mark {
  atS: number;
  label: string;
}

export interface TimelineLayout {
  rows: string[]; // places: the router, then workers, in the order in which they came in
  bars: Bar[];
  marks: Mark[];
  totalS: number;
}

const ROUTER = "router";
const SHORTEST_S = 1e-6;

/** A stage that has not ended goes on to the latest moment that the record knows. */
export function layoutOf(record: Explanation): TimelineLayout {
  const known = record.attempts.flatMap((attempt) =>
    attempt.stages.flatMap((stage) => [stage.begin_s, stage.end_s ?? 0]),
  );
  const totalS = Math.max(record.total_s ?? 0, SHORTEST_S, ...known);
  const rows = [ROUTER];
  const bars: Bar[] = [];
  for (const attempt of record.attempts) {
    for (const { stage, begin_s: beginS, end_s, where } of attempt.stages) {
      const endS = end_s ?? totalS;
      const label = labelOf(attempt, stage, record.attempts.length);
      bars.push({ stage, row: rowOf(rows, where ?? ROUTER), beginS, endS, label });
      if (stage === "transfer" && record.transfer && where) addHandOff(bars, rowOf(rows, where), record.transfer);
    }
  }
  const marks = record.events.filter((event) => event.phase === "first_token" || isMove(event.phase, event.detail));
  return {
    rows,
    bars,
    marks: marks.map((event) => ({ atS: event.at_s, label: event.phase === "decode" ? event.detail : "first token" })),
    totalS,
  };
}

/** Pages go to the decode worker while the prompt is still computed. */
function addHandOff(bars: Bar[], row: number, transfer: { at_s: number; seconds: number }): void {
  const beginS = Math.max(0, transfer.at_s - transfer.seconds);
  bars.push({ stage: "transfer", row, beginS, endS: transfer.at_s, label: "pages on their way", isBehind: true });
}

function isMove(phase: string, detail: string): boolean {
  return phase === "decode" && detail !== "";
}

function rowOf(rows: string[], place: string): number {
  const name = place.replace(" -> ", " → ");
  if (!rows.includes(name)) rows.push(name);
  return rows.indexOf(name);
}

function labelOf(attempt: Attempt, stage: string, numAttempts: number): string {
  return numAttempts > 1 ? `${stage} (attempt ${attempt.attempt + 1})` : stage;
}

/** Of a request to a tensor model: what it waited and what each execution or step took. */
export function inferLayoutOf(record: InferExplanation): TimelineLayout {
  const rows = [ROUTER];
  const bars: Bar[] = [];
  const stepEnds = record.steps.map((step) => step.ended_s ?? 0);
  const totalS = Math.max(record.total_s ?? 0, SHORTEST_S, ...stepEnds);
  if (record.steps.length) {
    for (const step of record.steps) addStep(rows, bars, step, totalS, "");
    return { rows, bars, marks: [], totalS };
  }
  const queuedS = record.timeline.queued ?? 0;
  const firstS = record.executions[0]?.at_s ?? record.timeline.ended ?? totalS;
  bars.push({ stage: "queued", row: 0, beginS: queuedS, endS: firstS, label: "queued" });
  for (const [number, execution] of record.executions.entries()) {
    const endS = record.executions[number + 1]?.at_s ?? record.timeline.ended ?? totalS;
    const label = record.executions.length > 1 ? `execution ${number + 1}` : "execution";
    bars.push({ stage: "decode", row: rowOf(rows, execution.instance), beginS: execution.at_s, endS, label });
  }
  return { rows, bars, marks: [], totalS };
}

function addStep(rows: string[], bars: Bar[], step: Step, totalS: number, above: string): void {
  const name = `${above}${step.model}`;
  const beginS = step.started_s ?? 0;
  const endS = step.ended_s ?? totalS;
  const waitedS = Math.min(step.queue_s ?? 0, endS - beginS);
  const row = rowOf(rows, name);
  if (waitedS > 0) bars.push({ stage: "queued", row, beginS, endS: beginS + waitedS, label: `${name}: queued` });
  bars.push({ stage: "decode", row, beginS: beginS + waitedS, endS, label: name });
  for (const inner of step.steps) addStep(rows, bars, inner, totalS, `${name} / `);
}

/** Round times from 0 to the end, for the axis. */
export function ticksOf(totalS: number, num = 5): number[] {
  const rough = totalS / num;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough * 0.999) ?? rough;
  const numSteps = Math.floor(totalS / step + 1e-6);
  return Array.from({ length: numSteps + 1 }, (_, number) => number * step);
}
