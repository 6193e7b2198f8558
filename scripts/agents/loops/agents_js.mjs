// OpenAI's Agents SDK for JavaScript, at the Responses API, which is its default, and at chat completions.
import { Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, run as runAgent, setTracingDisabled, tool } from "@openai/agents";
import OpenAI from "openai";
import { z } from "zod";
import { ONE, TWO, run, saw, weather } from "./report.mjs";

setTracingDisabled(true);

function make(api, asked, name = "scripted", Model = OpenAIResponsesModel, fields = {}) {
  const model = new Model(new OpenAI({ baseURL: api, apiKey: "-", maxRetries: 0 }), name);
  const parameters = z.object({ city: z.string() });
  const execute = async ({ city }) => (asked.push(city), weather(city));
  const get_weather = tool({ name: "get_weather", description: "The weather of a city", parameters, execute });
  return new Agent({ name: "Weatherman", instructions: "You know the weather.", model, tools: [get_weather], ...fields });
}

async function whole(api, question, city, name, Model) {
  const asked = [];
  const { finalOutput } = await runAgent(make(api, asked, name, Model), question);
  return saw({ asked, answer: finalOutput, city });
}

async function streamed(api, question, city, Model) {
  const asked = [];
  const result = await runAgent(make(api, asked, "scripted", Model), question, { stream: true });
  let answer = "";
  for await (const text of result.toTextStream()) answer += text;
  await result.completed;
  return saw({ asked, answer, city });
}

async function stored(api) {
  const asked = [];
  const agent = make(api, asked, "scripted", OpenAIResponsesModel, { modelSettings: { store: true } });
  const { lastResponseId: previousResponseId } = await runAgent(agent, ONE);
  const { finalOutput } = await runAgent(agent, "And what is the weather in Rome?", { previousResponseId });
  return saw({ asked, answer: finalOutput, city: "Rome" });
}

async function structured(api) {
  const outputType = z.object({ name: z.string(), country: z.string() });
  const { finalOutput } = await runAgent(make(api, [], "scripted", OpenAIResponsesModel, { tools: [], outputType }), "Describe Paris as JSON");
  if (finalOutput.country !== "France") throw Error(JSON.stringify(finalOutput));
  return JSON.stringify(finalOutput);
}

await run({
  "one tool": (api) => whole(api, ONE, "Paris"),
  "two tools": (api) => whole(api, TWO, "Rome"),
  "two tools, streamed": (api) => streamed(api, TWO, "Rome"),
  "thinking model": (api) => whole(api, ONE, "Paris", "thinking"),
  previous_response_id: stored,
  "structured output": structured,
  "two tools, chat completions": (api) => whole(api, TWO, "Rome", "scripted", OpenAIChatCompletionsModel),
  "two tools, chat completions, streamed": (api) => streamed(api, TWO, "Rome", OpenAIChatCompletionsModel),
});
