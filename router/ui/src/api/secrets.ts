/** The key and the token of this tab. They are in no address, and are forgotten when the tab is closed. */
import { signal } from "@preact/signals";

/** What a person is asked for now; null: nothing. The frame shows it as a dialog. */
export interface SecretQuestion {
  title: string;
  about: string;
  /** null: the person has given none. */
  answer: (secret: string | null) => void;
}

export const secretQuestion = signal<SecretQuestion | null>(null);

const REFUSED = "The one that was given was refused.";

export class Secret {
  private readonly stored;
  private asking: Promise<boolean> | null = null;
  /** The person was asked and gave none. What is read by itself does not ask again; what the person does, does. */
  readonly isDeclined = signal(false);

  constructor(
    private readonly name: string,
    readonly title: string,
    private readonly about: string,
  ) {
    this.stored = signal(sessionStorage.getItem(name) ?? "");
  }

  /** "" where none was given. */
  get value(): string {
    return this.stored.value;
  }

  set(secret: string): void {
    this.stored.value = secret;
    if (secret) sessionStorage.setItem(this.name, secret);
    else sessionStorage.removeItem(this.name);
  }

  /** Asks a person once, however many requests were refused, and says `why`: by default that `refused` was wrong. Returns
   * whether there is another secret than `refused`. */
  ask(refused: string, why = ""): Promise<boolean> {
    if (this.value !== refused) return Promise.resolve(true);
    this.asking ??= this.questioned(why || (refused ? REFUSED : "")).finally(() => {
      this.asking = null;
    });
    return this.asking;
  }

  private async questioned(why: string): Promise<boolean> {
    const given = await new Promise<string | null>((answer) => {
      secretQuestion.value = { title: this.title, about: why ? `${why} ${this.about}` : this.about, answer };
    });
    secretQuestion.value = null;
    this.isDeclined.value = given === null;
    if (given === null) return false;
    this.set(given);
    return true;
  }
}

export const apiKey = new Secret(
  "slipstream-key",
  "API key",
  "The server asks for an API key. It is kept until this tab is closed, and sent to this server only.",
);

export const adminToken = new Secret(
  "slipstream-admin-token",
  "Administrator's token",
  "Changes need a token of the admin API. On the host of the cluster, the command `slipstream tokens show` prints it. " +
    "It is kept until this tab is closed, and sent to this server only.",
);
