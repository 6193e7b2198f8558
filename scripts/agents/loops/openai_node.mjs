// OpenAI's client for Node: runTools, which calls functions until the model answers.
import OpenAI from "openai";
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

await run({
  "runTools, one tool": (api) => tools(api, ONE, "Paris", false),
  "runTools, two tools": (api) => tools(api, TWO, "Rome", false),
  "runTools, two tools, streamed": (api) => tools(api, TWO, "Rome", true),
  reasoning,
  "cut by max_tokens": cut,
});
