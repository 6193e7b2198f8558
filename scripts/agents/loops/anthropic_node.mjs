// Anthropic's client for TypeScript, at the Messages API.
import Anthropic from "@anthropic-ai/sdk";
import { betaZodTool } from "@anthropic-ai/sdk/helpers/beta/zod";
import { z } from "zod";
import { LETTER, ONE, TWO, run, saw, weather } from "./report.mjs";

const client = (api) => new Anthropic({ baseURL: api.replace(/\/v1$/, ""), apiKey: "-", maxRetries: 0 });
const input_schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ name: "get_weather", description: "The weather of a city", input_schema }];
const textOf = (message) => message.content.map((block) => block.text ?? "").join("");

function results(content, asked) {
  const calls = content.filter((block) => block.type === "tool_use");
  asked.push(...calls.map((call) => call.input.city));
  return calls.map((call) => ({ type: "tool_result", tool_use_id: call.id, content: weather(call.input.city) }));
}

async function manual(api, model, question, city, thinking, isStreamed) {
  const asked = [];
  const thoughts = [];
  const messages = [{ role: "user", content: question }];
  const fields = { model, max_tokens: 2000, tools, thinking, messages };
  for (;;) {
    const { messages: calls } = client(api);
    const message = isStreamed ? await calls.stream(fields).finalMessage() : await calls.create(fields);
    thoughts.push(...message.content.filter((block) => block.type === "thinking").map((block) => block.thinking));
    if (message.stop_reason !== "tool_use") {
      return (thoughts.length ? `${JSON.stringify(thoughts)}; ` : "") + saw({ asked, answer: textOf(message), city });
    }
    messages.push({ role: "assistant", content: message.content }, { role: "user", content: results(message.content, asked) });
  }
}

async function runner(api, stream) {
  const asked = [];
  const run = async ({ city }) => (asked.push(city), weather(city));
  const inputSchema = z.object({ city: z.string() });
  const get_weather = betaZodTool({ name: "get_weather", description: "The weather of a city", inputSchema, run });
  const messages = [{ role: "user", content: TWO }];
  const turns = client(api).beta.messages.toolRunner({ model: "scripted", max_tokens: 500, messages, tools: [get_weather], stream });
  let message;
  for await (const turn of turns) message = stream ? await turn.finalMessage() : turn;
  return saw({ asked, answer: textOf(message), city: "Rome" });
}

async function cut(api) {
  const messages = [{ role: "user", content: LETTER }];
  const letter = { name: "write_letter", input_schema: { type: "object" } };
  const stream = client(api).messages.stream({ model: "scripted", max_tokens: 30, messages, tools: [letter] });
  const message = await stream.finalMessage();
  if (message.stop_reason !== "max_tokens") throw Error(JSON.stringify(message));
  return `stop_reason ${message.stop_reason}`;
}

await run({
  "one tool": (api) => manual(api, "scripted", ONE, "Paris"),
  "two tools, streamed": (api) => manual(api, "scripted", TWO, "Rome", undefined, true),
  thinking: (api) => manual(api, "thinking", ONE, "Paris", { type: "enabled", budget_tokens: 1024 }),
  "thinking, streamed": (api) => manual(api, "thinking", ONE, "Paris", { type: "enabled", budget_tokens: 1024 }, true),
  "toolRunner, two tools": (api) => runner(api, false),
  "toolRunner, two tools, streamed": (api) => runner(api, true),
  "cut by max_tokens": cut,
});
