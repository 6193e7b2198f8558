/** What the server offers: models of language, a repository, or both. */
import { signal } from "@preact/signals";
import { getJson } from "./client";

/** An entry of `/v1/models`. `kinds` are the endpoints of a tensor model; models of language have none. */
export interface ModelCard {
  id: string;
  root?: string;
  parent?: string | null;
  max_model_len?: number | null;
  kinds?: string[];
  versions?: string[];
  state?: string;
}

export interface Services {
  models: ModelCard[];
  hasLanguageModels: boolean;
}

/** null until it is known. */
export const services = signal<Services | null>(null);

/** Those that answer chat completions. */
export function chatModels(cards: readonly ModelCard[]): ModelCard[] {
  return cards.filter((card) => !card.kinds?.length || card.kinds.includes("chat"));
}

export async function readServices(): Promise<Services> {
  const models = (await getJson<{ data: ModelCard[] }>("v1/models")).data;
  const found = { models, hasLanguageModels: chatModels(models).length > 0 };
  services.value = found;
  return found;
}
