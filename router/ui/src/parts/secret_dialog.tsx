import { type SecretQuestion, secretQuestion } from "../api/secrets";
import { Dialog } from "./dialog";

/** Asks for the key or token that a request was refused for. Nothing of it reaches the address or the history. */
export function SecretDialog() {
  const asked = secretQuestion.value;
  return asked && <SecretForm key={asked.title} asked={asked} />;
}

function SecretForm({ asked }: { asked: SecretQuestion }) {
  return (
    <Dialog title={asked.title} onClose={() => asked.answer(null)}>
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          const given = new FormData(event.currentTarget).get("secret");
          asked.answer(String(given ?? "").trim() || null);
        }}
      >
        <p>{asked.about}</p>
        <label class="field">
          {asked.title}
          <input name="secret" type="password" autocomplete="off" spellcheck={false} required />
        </label>
        <div class="buttons end">
          <button type="button" onClick={() => asked.answer(null)}>
            Cancel
          </button>
          <button type="submit" class="primary">
            Use it
          </button>
        </div>
      </form>
    </Dialog>
  );
}
