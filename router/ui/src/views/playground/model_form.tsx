import { useEffect, useRef, useState } from "preact/hooks";
import { AnswerView } from "./answer_view";
import { type Answer, ask, type Explained, explanationOf } from "./answers";
import { type Call, type CallKind, callOf, curlOf } from "./calls";
import { isDecoupled, type Model, optionalInputs, stepsOf } from "./models";
import { parametersOf, RequestOptionFields, type RequestOptions, UNSCHEDULED } from "./request_options";
import { emptyDraft, InputFields } from "./tensors/input_fields";
import { type InputDraft, tensorOf } from "./tensors/input_values";

interface Props {
  model: Model;
  version: string;
  onExplained: (explained: Explained | null) => void;
}

/** The form of a request to one model, and what came of it. */
export function ModelForm({ model, version, onExplained }: Props) {
  const { metadata, config } = model;
  const [drafts, setDrafts] = useState(() => draftsOf(model));
  const [options, setOptions] = useState(() => optionsOf(model));
  const [call, setCall] = useState<Call | null>(null);
  const [answer, setAnswer] = useState<Answer | null>(null);
  const [fault, setFault] = useState("");
  const running = useRef<AbortController | null>(null);
  const [isRunning, setRunning] = useState(false);
  useEffect(() => () => running.current?.abort(), []);

  const newCall = (): Call => {
    const sent = metadata.inputs.filter((tensor) => drafts[tensor.name]?.isSent);
    const values = sent.map((tensor) => tensorOf(tensor, drafts[tensor.name] as InputDraft));
    const { scheduling, isBinary } = options;
    const parameters = parametersOf(options.parameters);
    return callOf(options.kind, metadata, values, { version, parameters, scheduling, isBinary });
  };

  const submit = async (event: Event) => {
    event.preventDefault();
    if (running.current) return;
    const controller = new AbortController();
    running.current = controller;
    setRunning(true);
    setFault("");
    setAnswer(null);
    let latest: Answer | null = null;
    try {
      const next = newCall();
      setCall(next);
      await ask(next, controller.signal, (one) => {
        latest = one;
        setAnswer(one);
      });
    } catch (error) {
      if (!controller.signal.aborted) setFault(error instanceof Error ? error.message : String(error));
    }
    running.current = null;
    setRunning(false);
    onExplained(latest && (await explanationOf((latest as Answer).requestId)));
  };

  return (
    <>
      <form
        class="playground-section"
        aria-label={`Request to ${metadata.name}`}
        onSubmit={(event) => void submit(event)}
      >
        <h3>Request</h3>
        {metadata.inputs
          .filter((tensor) => drafts[tensor.name]?.isSent)
          .map((tensor) => (
            <InputFields
              key={tensor.name}
              tensor={tensor}
              draft={drafts[tensor.name] as InputDraft}
              hasBatch={(config.max_batch_size ?? 0) > 0}
              onChange={(draft) => setDrafts((before) => ({ ...before, [tensor.name]: draft }))}
            />
          ))}
        <OptionalInputs names={[...optionalInputs(config)]} drafts={drafts} onChange={setDrafts} />
        <RequestOptionFields
          options={options}
          kinds={kindsOf(model)}
          hasSequences={Boolean(config.sequence_batching)}
          onChange={setOptions}
        />
        <div class="playground-row">
          <button type="submit" class="primary" disabled={isRunning}>
            Send
          </button>
          {isRunning && (
            <button type="button" onClick={() => running.current?.abort()}>
              Stop
            </button>
          )}
        </div>
        {fault && (
          <p role="alert" class="bad">
            {fault}
          </p>
        )}
      </form>
      {(answer || call) && <AnswerView answer={answer} curl={call ? curlOf(call) : ""} isRunning={isRunning} />}
    </>
  );
}

interface OptionalInputsProps {
  names: readonly string[];
  drafts: Record<string, InputDraft>;
  onChange: (drafts: Record<string, InputDraft>) => void;
}

/** Which of the optional inputs are sent. */
function OptionalInputs({ names, drafts, onChange }: OptionalInputsProps) {
  if (!names.length) return null;
  const choose = (name: string, isSent: boolean) =>
    onChange({ ...drafts, [name]: { ...(drafts[name] as InputDraft), isSent } });
  return (
    <fieldset class="playground-input">
      <legend>Optional inputs</legend>
      <div class="playground-row">
        {names.map((name) => (
          <label key={name}>
            <input
              type="checkbox"
              checked={drafts[name]?.isSent ?? false}
              onChange={(event) => choose(name, event.currentTarget.checked)}
            />
            {name}
          </label>
        ))}
      </div>
    </fieldset>
  );
}

function kindsOf({ config }: Model): readonly CallKind[] {
  return isDecoupled(config) ? ["generate_stream", "generate"] : ["infer", "generate", "generate_stream"];
}

function draftsOf({ metadata, config }: Model): Record<string, InputDraft> {
  const optional = optionalInputs(config);
  const hasBatch = (config.max_batch_size ?? 0) > 0;
  const drafts = metadata.inputs.map((tensor) => [
    tensor.name,
    emptyDraft(tensor, optional.has(tensor.name), hasBatch),
  ]);
  const all = Object.fromEntries(drafts) as Record<string, InputDraft>;
  // A language model streams if this input of it says so.
  if (all.stream && isDecoupled(config)) all.stream = { ...all.stream, isSent: true };
  return all;
}

function optionsOf({ metadata, config }: Model): RequestOptions {
  const isWriter = isDecoupled(config) && metadata.outputs.some((tensor) => tensor.datatype === "BYTES");
  const isKnownWriter = ["vllm", "tensorrtllm"].includes(config.backend ?? "") || stepsOf(config).length > 0;
  return {
    kind: isDecoupled(config) ? "generate_stream" : "infer",
    parameters: isWriter && isKnownWriter ? '{"max_tokens": 100}' : "",
    scheduling: UNSCHEDULED,
    isBinary: false,
  };
}
