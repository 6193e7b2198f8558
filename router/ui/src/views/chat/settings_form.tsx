import { settings, store } from "./conversation";
import type { Settings } from "./settings";

const NUMBERS = [
  { name: "temperature", title: "Temperature", min: 0, max: 2, step: "any" },
  { name: "top_p", title: "Top p", min: 0, max: 1, step: "any" },
  { name: "max_tokens", title: "Max tokens", min: 1, step: 1 },
  { name: "seed", title: "Seed", step: 1 },
] as const;

/** System prompt, sampling, tools and the form of the answer. What is left empty is the model's default. */
export function SettingsForm() {
  const shown = settings.value;
  const set = (name: keyof Settings) => (event: { currentTarget: { value: string } }) => {
    settings.value = { ...settings.value, [name]: event.currentTarget.value };
    store();
  };
  return (
    <fieldset class="chat-settings">
      <legend>Settings</legend>
      <label class="field whole">
        System prompt
        <textarea rows={2} value={shown.system} onInput={set("system")} />
      </label>
      {NUMBERS.map(({ name, title, ...bounds }) => (
        <label key={name} class="field">
          {title}
          <input type="number" placeholder="default" {...bounds} value={shown[name]} onInput={set(name)} />
        </label>
      ))}
      <label class="field">
        Thinking
        <select value={shown.thinking} onChange={set("thinking")}>
          <option value="">Default</option>
          <option value="on">On</option>
          <option value="off">Off</option>
        </select>
      </label>
      <label class="field">
        Form of the answer
        <select value={shown.form} onChange={set("form")}>
          <option value="">Any text</option>
          <option value="json">JSON object</option>
          <option value="schema">JSON schema</option>
        </select>
      </label>
      <label class="field">
        Stop strings (one a line)
        <textarea rows={2} value={shown.stop} onInput={set("stop")} />
      </label>
      <label class="field half">
        Tools (JSON: a list of functions)
        <textarea rows={4} class="mono" spellcheck={false} value={shown.tools} onInput={set("tools")} />
      </label>
      {shown.form === "schema" && (
        <label class="field half">
          JSON schema
          <textarea rows={4} class="mono" spellcheck={false} value={shown.schema} onInput={set("schema")} />
        </label>
      )}
    </fieldset>
  );
}
