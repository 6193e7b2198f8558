import { signal } from "@preact/signals";
import { Dialog } from "./dialog";

interface Choice {
  title: string;
  about: string;
  action: string;
  isDangerous: boolean;
  answer: (isWanted: boolean) => void;
}

const choice = signal<Choice | null>(null);

/** Asks a person whether something is to be done; `action` is the text of the button that does it. */
export async function isConfirmed(title: string, about: string, action: string, isDangerous = false): Promise<boolean> {
  const isWanted = await new Promise<boolean>((answer) => {
    choice.value = { title, about, action, isDangerous, answer };
  });
  choice.value = null;
  return isWanted;
}

export function ConfirmDialog() {
  const asked = choice.value;
  if (!asked) return null;
  return (
    <Dialog title={asked.title} onClose={() => asked.answer(false)}>
      <p>{asked.about}</p>
      <div class="buttons end">
        <button type="button" onClick={() => asked.answer(false)}>
          Cancel
        </button>
        <button type="button" class={asked.isDangerous ? "danger" : "primary"} onClick={() => asked.answer(true)}>
          {asked.action}
        </button>
      </div>
    </Dialog>
  );
}
