import type { CallKind, Scheduling } from "./calls";

/** What a person has given for a request besides its inputs. */
export interface RequestOptions {
  kind: CallKind;
  /** A JSON object; empty: none. */
  parameters: string;
  scheduling: Scheduling;
  isBinary: boolean;
}

export const UNSCHEDULED: Scheduling = {
  priority: "",
  timeout: "",
  sequenceId: "",
  isSequenceStart: false,
  isSequenceEnd: false,
};

/** Throws RangeError. */
export function parametersOf(text: string): Record<string, unknown> {
  if (!text.trim()) return {};
  try {
    const value: unknown = JSON.parse(text);
    if (value && typeof value === "object" && !Array.isArray(value)) return value as Record<string, unknown>;
  } catch {
    // said below
  }
  throw new RangeError(`Parameters: '${text}' is not a JSON object.`);
}

interface Props {
  options: RequestOptions;
  kinds: readonly CallKind[];
  hasSequences: boolean;
  onChange: (options: RequestOptions) => void;
}

/** Parameters of a request, and how it is scheduled. */
export function RequestOptionFields({ options, kinds, hasSequences, onChange }: Props) {
  const { kind, parameters, scheduling, isBinary } = options;
  const change = (part: Partial<RequestOptions>) => onChange({ ...options, ...part });
  const schedule = (part: Partial<Scheduling>) => change({ scheduling: { ...scheduling, ...part } });
  return (
    <>
      <div class="playground-row">
        <label>
          <span>Send to</span>
          <select value={kind} onChange={(event) => change({ kind: event.currentTarget.value as CallKind })}>
            {kinds.map((one) => (
              <option key={one}>{one}</option>
            ))}
          </select>
        </label>
        <label class="playground-wide">
          <span>Parameters (JSON)</span>
          <input
            type="text"
            value={parameters}
            placeholder='{"name": "value"}'
            spellcheck={false}
            onInput={(event) => change({ parameters: event.currentTarget.value })}
          />
        </label>
      </div>
      {kind === "infer" && (
        <details open={hasSequences}>
          <summary>Scheduling and encoding</summary>
          <div class="playground-row">
            <NumberField label="Priority" value={scheduling.priority} onInput={(priority) => schedule({ priority })} />
            <NumberField label="Timeout (µs)" value={scheduling.timeout} onInput={(timeout) => schedule({ timeout })} />
            <label>
              <span>Sequence</span>
              <input
                type="text"
                size={10}
                value={scheduling.sequenceId}
                placeholder="none"
                onInput={(event) => schedule({ sequenceId: event.currentTarget.value })}
              />
            </label>
            <Check
              label="starts"
              isOn={scheduling.isSequenceStart}
              onChange={(isSequenceStart) => schedule({ isSequenceStart })}
            />
            <Check
              label="ends"
              isOn={scheduling.isSequenceEnd}
              onChange={(isSequenceEnd) => schedule({ isSequenceEnd })}
            />
            <Check label="binary tensors" isOn={isBinary} onChange={(one) => change({ isBinary: one })} />
          </div>
        </details>
      )}
    </>
  );
}

function NumberField(props: { label: string; value: string; onInput: (value: string) => void }) {
  return (
    <label>
      <span>{props.label}</span>
      <input
        type="text"
        inputMode="numeric"
        size={8}
        value={props.value}
        placeholder="default"
        onInput={(event) => props.onInput(event.currentTarget.value)}
      />
    </label>
  );
}

function Check(props: { label: string; isOn: boolean; onChange: (isOn: boolean) => void }) {
  return (
    <label class="playground-check">
      <input type="checkbox" checked={props.isOn} onChange={(event) => props.onChange(event.currentTarget.checked)} />
      {props.label}
    </label>
  );
}
