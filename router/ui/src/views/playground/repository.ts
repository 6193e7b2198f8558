/** The model repository of the router, over KServe v2. */
import { ApiError, getJson, send } from "../../api/client";
import {
  type IndexEntry,
  type Model,
  type ModelConfig,
  type ModelMetadata,
  type ModelStatistics,
  pathOf,
} from "./models";

export async function indexOf(abort?: AbortSignal): Promise<IndexEntry[]> {
  const response = await send("v2/repository/index", { method: "POST", body: {}, abort });
  return response.json() as Promise<IndexEntry[]>;
}

export async function modelOf(name: string, version: string, abort?: AbortSignal): Promise<Model> {
  const path = pathOf(name, version);
  const [metadata, config] = await Promise.all([
    getJson<ModelMetadata>(path, abort),
    getJson<ModelConfig>(`${path}/config`, abort),
  ]);
  return { metadata, config };
}

export async function statisticsOf(name: string, version: string): Promise<ModelStatistics[]> {
  const { model_stats } = await getJson<{ model_stats: ModelStatistics[] }>(`${pathOf(name, version)}/stats`);
  return model_stats;
}

export async function change(name: string, what: "load" | "unload"): Promise<void> {
  await send(`v2/repository/models/${encodeURIComponent(name)}/${what}`, { method: "POST", body: {} });
}

/** Whether clients may load and unload models; false as well where the key of the page may not know. */
export async function isExplicit(): Promise<boolean> {
  try {
    const status = await getJson<{ repository?: { control_mode?: string } }>("cluster/status");
    return status.repository?.control_mode === "explicit";
  } catch (error) {
    if (error instanceof ApiError) return false;
    throw error;
  }
}
