/** Changes that an administrator makes: asked first, then what came of them. */
import { isConfirmed } from "../../parts/confirm";
import { note, noteError } from "../../parts/notices";

export interface Action {
  title: string;
  about: string;
  button: string;
  isDangerous?: boolean;
  run: () => Promise<unknown>;
  done: string;
}

export async function runAction(action: Action): Promise<boolean> {
  if (!(await isConfirmed(action.title, action.about, action.button, action.isDangerous))) return false;
  return attempt(action.run, action.done);
}

/** Does it, and says what came of it; the server's warning stands behind. Returns whether it was done. */
export async function attempt(run: () => Promise<unknown>, done: string): Promise<boolean> {
  try {
    const answer = (await run()) as { warning?: string | null } | null;
    note("good", answer?.warning ? `${done} ${answer.warning}.` : done);
    return true;
  } catch (error) {
    noteError(error);
    return false;
  }
}
