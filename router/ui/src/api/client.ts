/** Requests to the router that serves this page, which may be under a path prefix: `.../ui/` is the page's address. */
import { signal } from "@preact/signals";

/** What went wrong, in the words of the server. `status` is 0 where it was not reached. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly code: string | null = null,
  ) {
    super(message);
  }
}

const KEY_NAME = "slipstream-key";
/** The key of an API client; "" where none is needed. It is kept until the tab is closed. */
export const apiKey = signal<string>(sessionStorage.getItem(KEY_NAME) ?? "");

export function setApiKey(key: string): void {
  apiKey.value = key;
  sessionStorage.setItem(KEY_NAME, key);
}

export function urlOf(path: string): string {
  return new URL(`../${path.replace(/^\//, "")}`, document.baseURI).toString();
}

export interface Asked {
  method?: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  /** Sent as JSON; bytes are sent as they are. */
  body?: unknown;
  headers?: Record<string, string>;
  abort?: AbortSignal;
}

/** The response of a request that succeeded. Throws ApiError. */
export async function send(path: string, asked: Asked = {}): Promise<Response> {
  const headers: Record<string, string> = { accept: "application/json", ...asked.headers };
  if (apiKey.value && !headers.authorization) headers.authorization = `Bearer ${apiKey.value}`;
  if (asked.body !== undefined) headers["content-type"] ??= "application/json";
  let response: Response;
  try {
    response = await fetch(urlOf(path), {
      method: asked.method ?? "GET",
      headers,
      body: bodyOf(asked.body),
      signal: asked.abort,
      credentials: "omit",
    });
  } catch (error) {
    if (asked.abort?.aborted) throw error;
    throw new ApiError(0, `The server was not reached: ${error instanceof Error ? error.message : error}`);
  }
  if (response.ok) return response;
  throw await errorOf(response);
}

function bodyOf(body: unknown): BodyInit | undefined {
  if (body === undefined) return undefined;
  return body instanceof Uint8Array ? (body as Uint8Array<ArrayBuffer>) : JSON.stringify(body);
}

export async function getJson<T>(path: string, abort?: AbortSignal): Promise<T> {
  return (await send(path, { abort })).json() as Promise<T>;
}

async function errorOf(response: Response): Promise<ApiError> {
  const text = await response.text();
  try {
    const body = JSON.parse(text);
    const error = body.error ?? body.detail ?? text;
    if (typeof error === "string") return new ApiError(response.status, error);
    return new ApiError(response.status, error.message ?? text, error.code ?? null);
  } catch {
    return new ApiError(response.status, text || response.statusText);
  }
}
