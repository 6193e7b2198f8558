// Vercel's AI SDK, with its provider for compatible servers and with the one for OpenAI's chat completions.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { LETTER, ONE, TWO, run, saw, weather } from "./report.mjs";

const compatible = (api, model) => createOpenAICompatible({ name: "slipstream", baseURL: api, apiKey: "-" })(model);
const openai = (api, model) => createOpenAI({ baseURL: api, apiKey: "-" }).chat(model);

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
});
