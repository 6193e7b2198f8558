import { duration } from "../../parts/format";
import { Link } from "../../parts/routing";
import type { Answer, OutputTensor } from "./answers";
import { Curl } from "./curl";
import { OutputView } from "./tensors/output_view";

/** What came of a request: times, outputs, and the command that sends the same. */
export function AnswerView({ answer, curl, isRunning }: { answer: Answer | null; curl: string; isRunning: boolean }) {
  return (
    <section class="playground-section" aria-labelledby="answer-heading" aria-busy={isRunning}>
      <h3 id="answer-heading">Answer</h3>
      {answer && <Summary answer={answer} />}
      <div aria-live="polite">
        {answer && joinedOutputs(answer).map((output) => <OutputView key={output.name} output={output} />)}
      </div>
      {answer && answer.responses.length > 1 && <Responses answer={answer} />}
      {curl && <Curl title="As a command" command={curl} />}
    </section>
  );
}

function Summary({ answer }: { answer: Answer }) {
  const { responses, total_ms, requestId } = answer;
  const first = responses[0];
  return (
    <p class="playground-summary" role="status">
      {total_ms !== null && <span>took {duration(total_ms / 1000)}</span>}
      {responses.length > 1 && first && <span>first response after {duration(first.at_ms / 1000)}</span>}
      {(responses.length > 1 || total_ms === null) && <span>{numberOf(responses)}</span>}
      {requestId && (
        <Link to="requests" item={requestId}>
          Where the time went
        </Link>
      )}
    </p>
  );
}

function numberOf(responses: readonly unknown[]): string {
  return responses.length === 1 ? "1 response" : `${responses.length} responses`;
}

/** The outputs of all responses: texts one behind the other, numbers of responses as rows. */
export function joinedOutputs({ responses }: Answer): OutputTensor[] {
  if (responses.length < 2) return responses[0]?.outputs ?? [];
  const joined = new Map<string, OutputTensor>();
  for (const { outputs } of responses) {
    for (const output of outputs) {
      const before = joined.get(output.name);
      joined.set(output.name, before ? behind(before, output) : output);
    }
  }
  return [...joined.values()];
}

function behind(before: OutputTensor, output: OutputTensor): OutputTensor {
  const { name, datatype } = output;
  if (datatype === "BYTES" && output.elements.length === 1 && before.elements.length === 1) {
    return { name, datatype, shape: [1], elements: [`${before.elements[0]}${output.elements[0]}`], raw: null };
  }
  const elements = [...before.elements, ...output.elements];
  return { name, datatype, shape: [elements.length], elements, raw: null };
}

const MAX_RESPONSES = 200;

function Responses({ answer }: { answer: Answer }) {
  return (
    <details>
      <summary>{numberOf(answer.responses)} as they came</summary>
      <div class="wide">
        <table>
          <thead>
            <tr>
              <th scope="col">After</th>
              <th scope="col">Outputs</th>
            </tr>
          </thead>
          <tbody>
            {answer.responses.slice(0, MAX_RESPONSES).map((response, index) => (
              <tr key={index}>
                <td class="number">{duration(response.at_ms / 1000)}</td>
                <td>
                  <code>
                    {response.outputs.map((output) => `${output.name}: ${JSON.stringify(briefOf(output))}`).join(", ")}
                  </code>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </details>
  );
}

function briefOf({ elements }: OutputTensor): unknown {
  const plain = elements.slice(0, 8).map((one) => (typeof one === "bigint" ? String(one) : one));
  return elements.length === 1 ? plain[0] : plain;
}
