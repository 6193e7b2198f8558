/** What the server offers: models of language, a repository, or both. */
import { signal } from "@preact/signals";
import { ApiError, getJson } from "./client";

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
  /** False at the administrators' port, which has the state of the cluster and no models. */
  areForClients: boolean;
}

/** null until it is known. */
export const services = signal<Services | null>(null);

/** Those that answer chat completions. */
export function chatModels(cards: readonly ModelCard[]): ModelCard[] {
  return cards.filter((card) => !card.kinds?.length || card.kinds.includes("chat"));
}

export async function readServices(): Promise<Services> {
  const models = await modelCards();
  const found = {
    models: models ?? [],
    hasLanguageModels: chatModels(models ?? []).length > 0,
    areForClients: models !== null,
  };
  services.value = found;
  return found;
}

/** null: this port has no API for clients. */
async function modelCards(): Promise<ModelCard[] | null> {
  try {
    return (await getJson<{ data: ModelCard[] }>("v1/models")).data;
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return null;
    throw error;
  }
}
