import { useEffect, useState } from "preact/hooks";
import { ApiError } from "../../api/client";
import { apiKey } from "../../api/secrets";
import { chatModels, readServices, services } from "../../api/services";
import { noteError } from "../../parts/notices";
import { Link } from "../../parts/routing";
import { AnswerCard } from "./answer_card";
import { ColumnBar } from "./column_bar";
import { Composer } from "./composer";
import { columns, numRunning, resend, restore, type Turn, turns } from "./conversation";
import { SettingsForm } from "./settings_form";
import "./chat.css";

/** One message, answered by one to four models side by side. `item` is the model to begin with. */
export function ChatView({ item }: { item: string }) {
  const models = chatModels(services.value?.models ?? []).map((card) => card.id);
  const [areSettingsShown, setAreSettingsShown] = useState(false);
  useEffect(() => {
    restore();
    readServices().catch(noteUnlessUnknown);
  }, []);
  useEffect(followEnd, []);
  useEffect(() => {
    const first = models.includes(item) ? item : models[0];
    if (first && !columns.value.some((one) => models.includes(one))) columns.value = [first];
  }, [models.join("\n"), item]);
  if (services.value?.areForClients === false) return <OtherPort />;
  if (services.value && !models.length) return <NoModels />;
  return (
    <div class="chat">
      <h2 class="visually-hidden">Chat</h2>
      <ColumnBar
        models={models}
        areSettingsShown={areSettingsShown}
        onSettings={() => setAreSettingsShown(!areSettingsShown)}
      />
      {areSettingsShown && <SettingsForm />}
      <div class="chat-turns">
        {turns.value.length === 0 && (
          <p class="chat-empty quiet">
            {apiKey.isDeclined.value
              ? "The server needs an API key."
              : "Ask something. Several models can answer side by side."}
          </p>
        )}
        {turns.value.map((turn, index) => (
          <TurnView key={turn.id} turn={turn} isLast={index === turns.value.length - 1} />
        ))}
      </div>
      <p class="visually-hidden" aria-live="polite">
        {numRunning.value ? "The answer is being written." : turns.value.length ? "The answer is complete." : ""}
      </p>
      <Composer />
    </div>
  );
}

/** A missing key is said in place of the conversation. */
function noteUnlessUnknown(error: unknown): void {
  if (!(error instanceof ApiError && error.status === 401)) noteError(error);
}

const NEAR_END_PX = 80;

/** While a person reads at the end of the page, it stays there as answers grow. */
function followEnd(): () => void {
  const root = document.documentElement;
  const isAtEnd = () => root.scrollHeight - scrollY - innerHeight < NEAR_END_PX;
  let isFollowing = isAtEnd();
  const scrolled = () => {
    isFollowing = isAtEnd();
  };
  const grown = new ResizeObserver(() => {
    if (isFollowing && numRunning.value > 0) scrollTo({ top: root.scrollHeight });
  });
  grown.observe(document.body);
  addEventListener("scroll", scrolled, { passive: true });
  return () => {
    grown.disconnect();
    removeEventListener("scroll", scrolled);
  };
}

function OtherPort() {
  return (
    <>
      <h2>Chat</h2>
      <p>This is the port of administrators. Models answer at the port of clients, which has this page as well.</p>
      <p>
        <Link to="cluster">Go to the cluster</Link>
      </p>
    </>
  );
}

function NoModels() {
  return (
    <>
      <h2>Chat</h2>
      <p>This server has no language model. Its tensor models are in the playground.</p>
      <p>
        <Link to="playground">Go to the playground</Link>
      </p>
    </>
  );
}

function TurnView({ turn, isLast }: { turn: Turn; isLast: boolean }) {
  const [draft, setDraft] = useState<string | null>(null);
  return (
    <section class="chat-turn" aria-label="Message and answers">
      {turn.text && draft === null && (
        <div class="chat-message">
          <p>{turn.text}</p>
          <button type="button" class="plain" onClick={() => setDraft(turn.text)}>
            Edit
          </button>
        </div>
      )}
      {draft !== null && (
        <form
          class="chat-edit stack"
          onSubmit={(event) => {
            event.preventDefault();
            resend(turn, draft);
          }}
        >
          <label class="field">
            Edited message (what came after it is forgotten)
            <textarea rows={3} value={draft} onInput={(event) => setDraft(event.currentTarget.value)} />
          </label>
          <div class="buttons end">
            <button type="button" onClick={() => setDraft(null)}>
              Cancel
            </button>
            <button type="submit">Send again</button>
          </div>
        </form>
      )}
      <div class={`chat-answers of-${turn.answers.length}`}>
        {turn.answers.map((answer, column) => (
          <AnswerCard key={column} turn={turn} column={column} answer={answer} isLast={isLast} />
        ))}
      </div>
    </section>
  );
}
