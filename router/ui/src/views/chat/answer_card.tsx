import type { Signal } from "@preact/signals";
import { useId, useState } from "preact/hooks";
import { CopyButton } from "../../parts/copy_button";
import { ExplanationOf } from "../../parts/explanation/explanation";
import { duration } from "../../parts/format";
import type { Answer, ToolCall } from "./answer";
import { regenerate, store, type Turn } from "./conversation";
import { MarkdownText } from "./markdown/markdown_text";

interface AnswerCardProps {
  turn: Turn;
  column: number;
  answer: Signal<Answer>;
  isLast: boolean;
}

export function AnswerCard({ turn, column, answer, isLast }: AnswerCardProps) {
  const shown = answer.value;
  const [isExplained, setIsExplained] = useState(false);
  const title = useId();
  const isRunning = shown.state === "running";
  return (
    <article class="chat-answer" aria-labelledby={title} aria-busy={isRunning}>
      <h3 id={title}>{shown.model}</h3>
      {shown.reasoning && (
        <details class="chat-reasoning">
          <summary>{isRunning && !shown.content ? "Thinking …" : "Reasoning"}</summary>
          <p>{shown.reasoning}</p>
        </details>
      )}
      <MarkdownText text={shown.content} />
      {shown.calls.map((call, index) => (
        <CallCard
          key={call.id || index}
          call={call}
          isOpen={isLast && !isRunning}
          onResult={(result) => {
            const calls = shown.calls.map((one, at) => (at === index ? { ...one, result } : one));
            answer.value = { ...shown, calls };
            store();
          }}
        />
      ))}
      {isRunning && !shown.content && !shown.reasoning && !shown.calls.length && <p class="quiet">Waiting …</p>}
      {shown.error && (
        <p class="bad" role="alert">
          {shown.error}
        </p>
      )}
      {!isRunning && <Figures answer={shown} />}
      <div class="buttons chat-actions">
        {shown.requestId && (
          <button type="button" class="plain" aria-expanded={isExplained} onClick={() => setIsExplained(!isExplained)}>
            Why there?
          </button>
        )}
        {!isRunning && isLast && (
          <button type="button" class="plain" onClick={() => regenerate(turn, column)}>
            Regenerate
          </button>
        )}
        {!isRunning && shown.content && <CopyButton text={shown.content} title="Copy answer" />}
      </div>
      {isExplained && shown.requestId && (
        <section class="chat-why" aria-label="Why there">
          <ExplanationOf id={shown.requestId} />
        </section>
      )}
    </article>
  );
}

function Figures({ answer }: { answer: Answer }) {
  const { times, usage } = answer;
  const cached = usage?.prompt_tokens_details?.cached_tokens;
  const ended = answer.state === "stopped" ? "stopped" : answer.finishReason;
  return (
    <p class="chat-figures">
      {times && <span>TTFT {duration(times.ttftS)}</span>}
      {times && (
        <span>
          ITL {duration(times.itlMeanS)} (p99 {duration(times.itlP99S)})
        </span>
      )}
      {usage && (
        <span>
          {usage.prompt_tokens} → {usage.completion_tokens} tokens{cached ? `, ${cached} cached` : ""}
        </span>
      )}
      {ended && <span>{ended.replaceAll("_", " ")}</span>}
    </p>
  );
}

interface CallCardProps {
  call: ToolCall;
  isOpen: boolean;
  onResult: (result: string) => void;
}

function CallCard({ call, isOpen, onResult }: CallCardProps) {
  return (
    <div class="chat-call">
      <p>
        Call of <strong class="mono">{call.name}</strong>
      </p>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: it may be wider than the page, and is scrolled by keys */}
      <pre tabIndex={0}>{indented(call.args)}</pre>
      {isOpen && (
        <label class="field">
          Result of {call.name}
          <textarea rows={2} value={call.result} onInput={(event) => onResult(event.currentTarget.value)} />
        </label>
      )}
    </div>
  );
}

/** Arguments that are whole are indented; those that are on their way are shown as they come. */
function indented(args: string): string {
  try {
    return JSON.stringify(JSON.parse(args), null, 2);
  } catch {
    return args;
  }
}
