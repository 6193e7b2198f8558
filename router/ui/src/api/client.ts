/** Requests to the router that serves this page, which may be under a path prefix: `.../ui/` is the page's address. */
import { apiKey, type Secret } from "./secrets";

export { adminToken, apiKey } from "./secrets";

/** The code of a refusal to a key that is right and is not an administrator's. */
const ADMIN_ONLY = "admin_only";

/** What went wrong, in the words of the server. `status` is 0 where it was not reached. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly code: string | null = null,
    readonly requestId: string | null = null,
  ) {
    super(message);
  }
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
  /** Sent as a bearer token, and asked for where the server refuses without it; null: neither. The API key by default. */
  secret?: Secret | null;
}

/** The response of a request that succeeded. Asks a person for the key that is missing. Throws ApiError. */
export async function send(path: string, asked: Asked = {}): Promise<Response> {
  const secret = asked.secret === undefined ? apiKey : asked.secret;
  for (;;) {
    const shown = secret?.value ?? "";
    const response = await sendOnce(path, asked, shown);
    if (response.ok) return response;
    const error = await errorOf(response);
    if (!secret || !wantsAnother(error)) throw error;
    if (isRead(asked) && secret.isDeclined.value) throw error;
    if (!(await secret.ask(shown, error.code === ADMIN_ONLY ? error.message : ""))) throw error;
  }
}

function isRead(asked: Asked): boolean {
  return (asked.method ?? "GET") === "GET";
}

/** Whether another key may help. A key that may not use a model is a key of its own right, and is kept. */
function wantsAnother(error: ApiError): boolean {
  return error.status === 401 || (error.status === 403 && error.code === ADMIN_ONLY);
}

async function sendOnce(path: string, asked: Asked, secret: string): Promise<Response> {
  const headers: Record<string, string> = { accept: "application/json", ...asked.headers };
  if (secret) headers.authorization ??= `Bearer ${secret}`;
  if (asked.body !== undefined) headers["content-type"] ??= "application/json";
  try {
    return await fetch(urlOf(path), {
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
  const id = response.headers.get("x-request-id");
  try {
    const body = JSON.parse(text);
    const error = body.error ?? body.detail ?? text;
    if (typeof error === "string") return new ApiError(response.status, error, null, id);
    return new ApiError(response.status, error.message ?? text, error.code ?? null, id);
  } catch {
    return new ApiError(response.status, text || response.statusText, null, id);
  }
}
