import { useEffect } from "preact/hooks";
import { urlOf } from "../../api/client";
import { readServices, services } from "../../api/services";
import { Curl } from "./curl";

/** By kind of endpoint: its path, and a body that asks it. A transcription's is a form. */
const EXAMPLES: Record<string, { path: string; body: Record<string, unknown> }> = {
  embeddings: { path: "v1/embeddings", body: { input: "hello" } },
  rerank: { path: "v1/rerank", body: { query: "read a file", documents: ["open a file", "sort a list"] } },
  images: { path: "v1/images/generations", body: { prompt: "a red fox" } },
  chat: { path: "v1/chat/completions", body: { messages: [{ role: "user", content: "hello" }] } },
};

/** The commands for the endpoints of OpenAI's shape at which a tensor model answers as well. */
export function OpenAiEndpoints({ model }: { model: string }) {
  useEffect(() => {
    if (!services.value) void readServices().catch(() => undefined); // a key without models sees none
  }, []);
  const cards = (services.value?.models ?? []).filter((card) => card.id === model);
  const commands = cards.flatMap((card) => (card.kinds ?? []).map((kind) => [kind, commandOf(kind, card.id)] as const));
  if (!commands.length) return null;
  return (
    <section class="playground-section" aria-labelledby="endpoints-heading">
      <h3 id="endpoints-heading">In OpenAI's API</h3>
      {commands.map(([kind, command]) => (
        <Curl key={command} title={kind} command={command} />
      ))}
    </section>
  );
}

function commandOf(kind: string, model: string): string {
  if (kind === "transcriptions") {
    return `curl -s ${urlOf("v1/audio/transcriptions")} -F model=${model} -F file=@speech.wav`;
  }
  const { path, body } = EXAMPLES[kind] ?? { path: `v1/${kind}`, body: {} };
  const text = JSON.stringify({ model, ...body });
  return `curl -s ${urlOf(path)} -H 'Content-Type: application/json' -d '${text}'`;
}
