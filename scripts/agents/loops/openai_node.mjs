// OpenAI's client for Node: runTools, which calls functions until the model answers; and the Responses API.
import OpenAI from "openai";
import { zodResponsesFunction, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { LETTER, ONE, TWO, run, saw, weather } from "./report.mjs";

const client = (api) => new OpenAI({ baseURL: api, apiKey: "-", maxRetries: 0 });
const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const plain = { type: "function", function: { name: "get_weather", description: "The weather of a city", parameters } };

async function tools(api, question, city, stream) {
  const asked = [];
  const call = async ({ city }) => (asked.push(city), weather(city));
  const tool = { ...plain, function: { ...plain.function, parse: JSON.parse, function: call } };
  const messages = [{ role: "user", content: question }];
  const runner = client(api).chat.completions.runTools({ model: "scripted", messages, tools: [tool], stream });
  return saw({ asked, answer: await runner.finalContent(), city });
}

async function reasoning(api) {
  const messages = [{ role: "user", content: ONE }];
  const answer = await client(api).chat.completions.create({ model: "thinking", messages, tools: [plain] });
  const [{ message, finish_reason: reason }] = answer.choices;
  if (reason !== "tool_calls" || message.reasoning_content !== "I need the weather of Paris.") throw Error(JSON.stringify(message));
  messages.push(message, { role: "tool", tool_call_id: message.tool_calls[0].id, content: weather("Paris") });
  let thoughts = "";
  let text = "";
  for await (const chunk of await client(api).chat.completions.create({ model: "thinking", messages, tools: [plain], stream: true })) {
    thoughts += chunk.choices[0].delta.reasoning_content ?? "";
    text += chunk.choices[0].delta.content ?? "";
  }
  if (thoughts !== "Now I know.") throw Error(thoughts);
  return `'${thoughts}'; ` + saw({ asked: ["Paris"], answer: text, city: "Paris" });
}

async function cut(api) {
  const messages = [{ role: "user", content: LETTER }];
  const tool = { type: "function", function: { name: "write_letter", parameters: { type: "object" } } };
  const stream = client(api).chat.completions.stream({ model: "scripted", messages, tools: [tool], max_tokens: 30 });
  try {
    await stream.finalChatCompletion();
  } catch (error) {
    if (error instanceof OpenAI.LengthFinishReasonError || /length/.test(error.message)) return `${error.constructor.name}: ${error.message}`;
    throw error;
  }
  const choice = (await stream.finalChatCompletion()).choices[0];
  if (choice.finish_reason !== "length") throw Error(JSON.stringify(choice));
  return `finish_reason length, arguments ${choice.message.tool_calls[0].function.arguments.slice(0, 20)}...`;
}

const flat = { type: "function", name: "get_weather", description: "The weather of a city", parameters, strict: false };

function results(output, asked) {
  const calls = output.filter((item) => item.type === "function_call");
  const cities = calls.map((call) => JSON.parse(call.arguments).city);
  asked.push(...cities);
  return calls.map((call, i) => ({ type: "function_call_output", call_id: call.call_id, output: weather(cities[i]) }));
}

async function responses(api, model, question, city, isStreamed) {
  const asked = [];
  const input = [{ role: "user", content: question }];
  const fields = { model, tools: [flat], input, store: false, include: ["reasoning.encrypted_content"] };
  for (;;) {
    const { responses: calls } = client(api);
    const answer = isStreamed ? await calls.stream(fields).finalResponse() : await calls.create(fields);
    const news = results(answer.output, asked);
    if (!news.length) return saw({ asked, answer: answer.output_text, city });
    input.push(...answer.output, ...news);
  }
}

async function chained(api) {
  const asked = [];
  const one = client(api);
  const first = await one.responses.create({ model: "scripted", input: TWO, tools: [flat], store: true });
  const next = { model: "scripted", previous_response_id: first.id, input: results(first.output, asked), tools: [flat] };
  const second = await one.responses.create(next);
  const kept = await one.responses.retrieve(second.id);
  if (kept.output_text !== second.output_text) throw Error(JSON.stringify(kept));
  return saw({ asked, answer: second.output_text, city: "Rome" });
}

async function parsed(api) {
  const tool = zodResponsesFunction({ name: "get_weather", parameters: z.object({ city: z.string() }) });
  const call = (await client(api).responses.parse({ model: "scripted", input: ONE, tools: [tool] })).output.at(-1);
  const schema = z.object({ name: z.string(), country: z.string() });
  const format = { format: zodTextFormat(schema, "City") };
  const answer = await client(api).responses.parse({ model: "scripted", input: "Describe Paris as JSON", text: format });
  if (call.parsed_arguments.city !== "Paris" || answer.output_parsed.country !== "France") throw Error(JSON.stringify([call, answer]));
  return JSON.stringify([call.parsed_arguments, answer.output_parsed]);
}

await run({
  "runTools, one tool": (api) => tools(api, ONE, "Paris", false),
  "runTools, two tools": (api) => tools(api, TWO, "Rome", false),
  "runTools, two tools, streamed": (api) => tools(api, TWO, "Rome", true),
  reasoning,
  "cut by max_tokens": cut,
  "responses, one tool": (api) => responses(api, "scripted", ONE, "Paris"),
  "responses, two tools, streamed": (api) => responses(api, "scripted", TWO, "Rome", true),
  "responses, reasoning items given back": (api) => responses(api, "thinking", ONE, "Paris"),
  "responses, reasoning items given back, streamed": (api) => responses(api, "thinking", ONE, "Paris", true),
  "responses, previous_response_id": chained,
  "responses, parse": parsed,
});
