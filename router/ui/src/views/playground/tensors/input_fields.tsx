import { useId, useState } from "preact/hooks";
import type { TensorMetadata } from "../models";
import { exampleText, type InputDraft, randomText } from "./input_values";
import { acceptedFor, PIXEL_SCALES, type PixelScale, valuesOf } from "./media";
import { imagePlaces, isFixed, shown } from "./shapes";

interface InputFieldsProps {
  tensor: TensorMetadata;
  draft: InputDraft;
  hasBatch: boolean;
  onChange: (draft: InputDraft) => void;
}

export function emptyDraft(tensor: TensorMetadata, isOptional: boolean, hasBatch: boolean): InputDraft {
  return { isSent: !isOptional, text: exampleText(tensor, hasBatch), shape: "", file: null };
}

/** The fields for one input of a model. */
export function InputFields(props: InputFieldsProps) {
  const { tensor, draft, hasBatch, onChange } = props;
  const [fault, setFault] = useState("");
  const id = useId();
  const change = (part: Partial<InputDraft>) => onChange({ ...draft, ...part });
  const fillRandomly = () => {
    try {
      change({ text: randomText(tensor, draft.shape, hasBatch), file: null });
      setFault("");
    } catch (error) {
      setFault(error instanceof Error ? error.message : String(error));
    }
  };
  return (
    <fieldset class="playground-input">
      <legend>
        {tensor.name}{" "}
        <span class="quiet">
          {tensor.datatype} {shown(tensor.shape)}
          {hasBatch && ", first dimension: batch"}
        </span>
      </legend>
      <ValueField id={id} tensor={tensor} draft={draft} onChange={change} />
      <div class="playground-row">
        {!isFixed(tensor.shape) && (
          <label>
            <span>Shape</span>
            <input
              type="text"
              size={14}
              value={draft.shape}
              placeholder="of the values"
              onInput={(event) => change({ shape: event.currentTarget.value })}
            />
          </label>
        )}
        <button type="button" class="plain" onClick={fillRandomly} aria-label={`Random values for ${tensor.name}`}>
          Random
        </button>
        <FileField tensor={tensor} onFile={(file) => change({ file })} onFault={setFault} />
      </div>

      {fault && <p role="alert">{fault}</p>}
    </fieldset>
  );
}

interface ValueFieldProps {
  id: string;
  tensor: TensorMetadata;
  draft: InputDraft;
  onChange: (part: Partial<InputDraft>) => void;
}

function ValueField({ id, tensor, draft, onChange }: ValueFieldProps) {
  const label = `Value of ${tensor.name}`;
  if (draft.file) {
    const { name, bytes, shape } = draft.file;
    return (
      <p class="playground-row">
        <span>
          {name}: {bytes ? `${bytes.length} bytes` : shown(shape)}
        </span>
        <button type="button" onClick={() => onChange({ file: null })}>
          Remove the file
        </button>
      </p>
    );
  }
  if (tensor.datatype === "BOOL" && tensor.shape.every((dim) => dim === 1)) {
    return (
      <select aria-label={label} value={draft.text} onChange={(event) => onChange({ text: event.currentTarget.value })}>
        <option>true</option>
        <option>false</option>
      </select>
    );
  }
  const isShort = draft.text.length < 60 && !draft.text.includes("\n") && tensor.datatype !== "BYTES";
  return (
    <textarea
      id={id}
      aria-label={label}
      rows={isShort ? 1 : Math.min(8, 2 + Math.floor(draft.text.length / 100))}
      spellcheck={false}
      value={draft.text}
      onInput={(event) => onChange({ text: event.currentTarget.value })}
    />
  );
}

interface FileFieldProps {
  tensor: TensorMetadata;
  onFile: (file: InputDraft["file"]) => void;
  onFault: (fault: string) => void;
}

function FileField({ tensor, onFile, onFault }: FileFieldProps) {
  const [scale, setScale] = useState<PixelScale>("0..1");
  const accepted = acceptedFor(tensor);
  if (!accepted) return null;
  const read = async (file: File | undefined) => {
    if (!file) return;
    try {
      onFile(await valuesOf(file, tensor, scale));
      onFault("");
    } catch (error) {
      onFault(`${file.name} was not read: ${error instanceof Error ? error.message : error}`);
    }
  };
  return (
    <>
      {imagePlaces(tensor.shape) && tensor.datatype !== "UINT8" && tensor.datatype !== "BYTES" && (
        <label>
          <span>Pixels as</span>
          <select value={scale} onChange={(event) => setScale(event.currentTarget.value as PixelScale)}>
            {PIXEL_SCALES.map((one) => (
              <option key={one}>{one}</option>
            ))}
          </select>
        </label>
      )}
      <label>
        <span>File</span>
        <input
          type="file"
          accept={accepted}
          aria-label={`File for ${tensor.name}`}
          onChange={(event) => void read(event.currentTarget.files?.[0])}
        />
      </label>
    </>
  );
}
