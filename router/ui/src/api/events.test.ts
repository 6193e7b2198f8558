import { expect, test } from "vitest";
import { eventsOf, type ServerEvent } from "./events";

/** A response whose body comes in these pieces. */
function response(pieces: readonly string[], isEnding = true): Response {
  const body = new ReadableStream<Uint8Array>({
    start(controller) {
      for (const piece of pieces) controller.enqueue(new TextEncoder().encode(piece));
      if (isEnding) controller.close();
    },
  });
  return new Response(body);
}

async function read(from: Response, patienceMs?: number): Promise<ServerEvent[]> {
  const events: ServerEvent[] = [];
  for await (const event of eventsOf(from, patienceMs)) events.push(event);
  return events;
}

test("events are put together from pieces, and comments are left out", async () => {
  const pieces = ["event: whole\r", "\ndata: {\r\ndata: }\r\n\r", "\n: quiet\n\ndata: 1\n", "\n"];
  expect(await read(response(pieces))).toEqual([
    { name: "whole", data: "{\n}" },
    { name: "message", data: "1" },
  ]);
});

test("a server that falls silent is given up", async () => {
  await expect(read(response(["data: 1\n\n"], false), 20)).rejects.toThrow("nothing for 0.02 s");
});
