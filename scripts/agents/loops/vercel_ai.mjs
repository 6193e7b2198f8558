// Vercel's AI SDK, with its providers for compatible servers, for OpenAI's APIs and for Anthropic's.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { Output, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { LETTER, ONE, TWO, run, saw, weather } from "./report.mjs";

const compatible = (api, model) => createOpenAICompatible({ name: "slipstream", baseURL: api, apiKey: "-" })(model);
const openai = (api, model) => createOpenAI({ baseURL: api, apiKey: "-" }).chat(model);
const responses = (api, model) => createOpenAI({ baseURL: api, apiKey: "-" })(model);
const anthropic = (api, model) => createAnthropic({ baseURL: api, apiKey: "-" })(model);

function options(model, prompt, asked) {
  const inputSchema = z.object({ city: z.string() });
  const execute = async ({ city }) => (asked.push(city), weather(city));
  const get_weather = tool({ description: "The weather of a city", inputSchema, execute });
  return { model, prompt, tools: { get_weather }, stopWhen: stepCountIs(5), maxRetries: 0 };
}

async function whole(model, prompt, city) {
  const asked = [];
  const { text } = await generateText(options(model, prompt, asked));
  return saw({ asked, answer: text, city });
}

async function streamed(model, prompt, city) {
  const asked = [];
  let answer = "";
  for await (const text of streamText(options(model, prompt, asked)).textStream) answer += text;
  return saw({ asked, answer, city });
}

async function reasoning(model) {
  const asked = [];
  const { text, steps } = await generateText(options(model, ONE, asked));
  const thoughts = steps.map((step) => step.reasoningText);
  if (String(thoughts) !== "I need the weather of Paris.,Now I know.") throw Error(JSON.stringify(thoughts));
  return `${JSON.stringify(thoughts)}; ` + saw({ asked, answer: text, city: "Paris" });
}

async function thinking(model, providerOptions, city = "Paris") {
  const asked = [];
  const { text, steps } = await generateText({ ...options(model, ONE, asked), providerOptions });
  const thoughts = steps.map((step) => step.reasoningText ?? "");
  if (!thoughts.every(Boolean)) throw Error(JSON.stringify(thoughts));
  return `${JSON.stringify(thoughts)}; ` + saw({ asked, answer: text, city });
}

async function chained(model) {
  const first = await generateText({ ...options(model, ONE, []), providerOptions: { openai: { store: true } } });
  const asked = [];
  const previousResponseId = first.providerMetadata.openai.responseId;
  const next = options(model, "And what is the weather in Rome?", asked);
  const { text } = await generateText({ ...next, providerOptions: { openai: { previousResponseId, store: true } } });
  return saw({ asked: ["Paris", ...asked], answer: text, city: "Rome" });
}

async function structured(model) {
  const schema = z.object({ name: z.string(), country: z.string() });
  const { output } = await generateText({ model, prompt: "Describe Paris as JSON", output: Output.object({ schema }), maxRetries: 0 });
  if (output.country !== "France") throw Error(JSON.stringify(output));
  return JSON.stringify(output);
}

async function cut(model) {
  const write_letter = tool({ description: "Writes a letter", inputSchema: z.object({ text: z.string() }) });
  const result = streamText({ model, prompt: LETTER, tools: { write_letter }, maxOutputTokens: 30, maxRetries: 0 });
  await result.consumeStream();
  const [reason, calls] = [await result.finishReason, await result.toolCalls];
  if (reason !== "length") throw Error(reason);
  return `finishReason length, ${calls.length} calls, of which ${calls.filter((call) => call.invalid).length} invalid`;
}

await run({
  "one tool": (api) => whole(compatible(api, "scripted"), ONE, "Paris"),
  "two tools": (api) => whole(compatible(api, "scripted"), TWO, "Rome"),
  "two tools, streamed": (api) => streamed(compatible(api, "scripted"), TWO, "Rome"),
  "two tools, openai().chat": (api) => whole(openai(api, "scripted"), TWO, "Rome"),
  "two tools, openai().chat, streamed": (api) => streamed(openai(api, "scripted"), TWO, "Rome"),
  "thinking model": (api) => reasoning(compatible(api, "thinking")),
  "cut by max_tokens": (api) => cut(compatible(api, "scripted")),
  "two tools, openai()": (api) => whole(responses(api, "scripted"), TWO, "Rome"),
  "two tools, openai(), streamed": (api) => streamed(responses(api, "scripted"), TWO, "Rome"),
  "thinking model, openai()": (api) => thinking(responses(api, "thinking"), { openai: { store: false, forceReasoning: true, reasoningSummary: "auto" } }),
  "previousResponseId, openai()": (api) => chained(responses(api, "scripted")),
  "structured output, openai()": (api) => structured(responses(api, "scripted")),
  "cut by max_tokens, openai()": (api) => cut(responses(api, "scripted")),
  "two tools, anthropic()": (api) => whole(anthropic(api, "scripted"), TWO, "Rome"),
  "two tools, anthropic(), streamed": (api) => streamed(anthropic(api, "scripted"), TWO, "Rome"),
  "thinking model, anthropic()": (api) => thinking(anthropic(api, "thinking"), { anthropic: { thinking: { type: "enabled", budgetTokens: 1024 } } }),
  "structured output, anthropic()": (api) => structured(anthropic(api, "scripted")),
  "cut by max_tokens, anthropic()": (api) => cut(anthropic(api, "scripted")),
});
