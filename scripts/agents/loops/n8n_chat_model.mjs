// n8n's node "OpenAI Chat Model", as an agent of n8n gets it: the model that the node supplies, which is asked with tools.
import { createRequire } from "node:module";
import { LETTER, ONE, TWO, run, saw, weather } from "./report.mjs";

const require = createRequire(import.meta.url);
const nodes = "./node_modules/@n8n/n8n-nodes-langchain/dist/nodes"; // the package exports none by name: n8n loads the files
const { LmChatOpenAi } = require(`${nodes}/llms/LMChatOpenAi/LmChatOpenAi.node.js`);
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tool = { type: "function", function: { name: "get_weather", description: "The weather of a city", parameters } };
const letter = { type: "function", function: { name: "write_letter", description: "Writes", parameters: { type: "object" } } };

// What n8n gives a node while a workflow runs, as far as this node uses it.
function workflow(api, model, responsesApiEnabled, options) {
  const set = { "model.value": model, responsesApiEnabled, options: { maxRetries: 0, ...options } };
  const node = { name: "OpenAI Chat Model", type: "lmChatOpenAi", typeVersion: 1.3 };
  return {
    getCredentials: async () => ({ apiKey: "-", url: api }),
    getNode: () => node,
    getNodeParameter: (name, _, other) => set[name] ?? other,
    helpers: { getSecureEgressFilter: () => "disabled" },
    getNextRunIndex: () => 0,
    addInputData: () => ({ index: 0 }),
    addOutputData: () => {},
    logAiEvent: () => {},
    getWorkflow: () => ({ id: "1", name: "weather" }),
    logger: console,
  };
}

async function supplied(api, model, isResponses, options = {}) {
  const { response } = await new LmChatOpenAi().supplyData.call(workflow(api, model, isResponses, options), 0);
  return response;
}

async function loop(api, model, question, city, isResponses, isStreamed) {
  const bound = (await supplied(api, model, isResponses)).bindTools([tool]);
  const asked = [];
  const messages = [{ role: "user", content: question }];
  for (;;) {
    let message;
    if (isStreamed) for await (const chunk of await bound.stream(messages)) message = message?.concat(chunk) ?? chunk;
    else message = await bound.invoke(messages);
    if (!message.tool_calls.length) return saw({ asked, answer: message.text, city });
    asked.push(...message.tool_calls.map((call) => call.args.city));
    const results = message.tool_calls.map((call) => ({ role: "tool", tool_call_id: call.id, content: weather(call.args.city) }));
    messages.push(message, ...results);
  }
}

async function cut(api, isResponses) {
  const message = await (await supplied(api, "scripted", isResponses, { maxTokens: 30 })).bindTools([letter]).invoke(LETTER);
  const said = message.response_metadata;
  const reason = said.finish_reason ?? said.incomplete_details?.reason;
  if (!["length", "max_output_tokens"].includes(reason)) throw Error(JSON.stringify(said));
  return reason;
}

await run({
  "chat completions, two tools": (api) => loop(api, "scripted", TWO, "Rome", false),
  "chat completions, two tools, streamed": (api) => loop(api, "scripted", TWO, "Rome", false, true),
  "responses, two tools": (api) => loop(api, "scripted", TWO, "Rome", true),
  "responses, two tools, streamed": (api) => loop(api, "scripted", TWO, "Rome", true, true),
  "responses, thinking model": (api) => loop(api, "thinking", ONE, "Paris", true),
  "cut by max_tokens": (api) => cut(api, false),
  "responses, cut by max_output_tokens": (api) => cut(api, true),
});
