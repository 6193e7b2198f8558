import { effect, signal } from "@preact/signals";

const THEMES = ["system", "light", "dark"] as const;
type Theme = (typeof THEMES)[number];
const STORED_AS = "slipstream-theme";

const stored = localStorage.getItem(STORED_AS);
export const theme = signal<Theme>(THEMES.find((one) => one === stored) ?? "system");

effect(() => {
  document.documentElement.dataset.theme = theme.value;
  localStorage.setItem(STORED_AS, theme.value);
});

export function ThemeSwitch() {
  return (
    <label class="theme">
      <span class="visually-hidden">Theme</span>
      <select
        value={theme.value}
        onChange={(event) => {
          theme.value = THEMES.find((one) => one === event.currentTarget.value) ?? "system";
        }}
      >
        {THEMES.map((one) => (
          <option key={one} value={one}>
            {one === "system" ? "System theme" : one === "light" ? "Light" : "Dark"}
          </option>
        ))}
      </select>
    </label>
  );
}
