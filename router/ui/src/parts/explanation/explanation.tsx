import { useEffect, useState } from "preact/hooks";
import { type Explanation, explanationOf, type InferExplanation, isInfer } from "../../api/requests";
import { textOf } from "../notices";
import { GenerationRecord } from "./generation_record";
import { InferRecord } from "./infer_record";
import "./explanation.css";

const AGAIN_MS = 1000;

/** How a request was served, and why so. `id` is one of its names. A running request is read again until it has ended. */
export function ExplanationOf({ id }: { id: string }) {
  const [record, setRecord] = useState<Explanation | InferExplanation | null>(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    const abort = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const read = async () => {
      try {
        const found = await explanationOf(id, abort.signal);
        setRecord(found);
        setProblem("");
        if (found.outcome === null) timer = setTimeout(read, AGAIN_MS);
      } catch (error) {
        if (!abort.signal.aborted) setProblem(textOf(error));
      }
    };
    setRecord(null);
    void read();
    return () => {
      abort.abort();
      clearTimeout(timer);
    };
  }, [id]);
  if (problem) return <p role="alert">{problem}</p>;
  if (!record) return <p class="quiet">Loading …</p>;
  return isInfer(record) ? <InferRecord record={record} /> : <GenerationRecord record={record} />;
}
