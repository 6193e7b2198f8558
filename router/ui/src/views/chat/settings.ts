/** What is asked of a model beside the messages. Numbers are texts as typed; "" leaves the default. */
export interface Settings {
  system: string;
  temperature: string;
  top_p: string;
  max_tokens: string;
  seed: string;
  stop: string; // one a line
  thinking: "" | "on" | "off";
  tools: string; // JSON
  form: "" | "json" | "schema";
  schema: string; // JSON
}

export const DEFAULTS: Settings = {
  system: "",
  temperature: "",
  top_p: "",
  max_tokens: "",
  seed: "",
  stop: "",
  thinking: "",
  tools: "",
  form: "",
  schema: "",
};

const NUMBERS = ["temperature", "top_p", "max_tokens", "seed"] as const;

/** The fields of a request. Throws Error that says which setting is wrong. */
export function fieldsOf(settings: Settings): Record<string, unknown> {
  const fields: Record<string, unknown> = {};
  for (const name of NUMBERS) {
    if (settings[name].trim()) fields[name] = numberOf(name, settings[name]);
  }
  const stops = settings.stop.split("\n").filter(Boolean);
  if (stops.length) fields.stop = stops;
  if (settings.thinking) fields.chat_template_kwargs = { enable_thinking: settings.thinking === "on" };
  if (settings.tools.trim()) fields.tools = toolsOf(parsed("The tools are", settings.tools));
  if (settings.form === "json") fields.response_format = { type: "json_object" };
  if (settings.form === "schema") {
    const schema = parsed("The JSON schema is", settings.schema);
    fields.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  }
  return fields;
}

function numberOf(name: string, text: string): number {
  const value = Number(text);
  if (!Number.isFinite(value)) throw new Error(`${name}: ${JSON.stringify(text)} is not a number.`);
  return value;
}

function parsed(subject: string, text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${subject} not JSON: ${error instanceof Error ? error.message : error}`);
  }
}

/** A list of OpenAI's tools, a single one, or bare functions. */
function toolsOf(given: unknown): unknown[] {
  const list = Array.isArray(given) ? given : [given];
  return list.map((one) =>
    one && typeof one === "object" && !("type" in one) ? { type: "function", function: one } : one,
  );
}
