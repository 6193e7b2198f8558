/** Server-sent events over fetch, because EventSource sends no key and only GET. */
export interface ServerEvent {
  name: string;
  data: string;
}

/** The events of a response's body, in order. Throws Error if nothing comes for `patienceMs`, not even a comment. */
export async function* eventsOf(response: Response, patienceMs = Infinity): AsyncGenerator<ServerEvent> {
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await within(patienceMs, reader.read());
      if (done) return;
      const blocks = (rest + value).replaceAll("\r\n", "\n").split("\n\n");
      rest = blocks.pop() ?? "";
      for (const block of blocks) {
        const event = eventOf(block);
        if (event) yield event;
      }
    }
  } finally {
    await reader.cancel();
  }
}

async function within<T>(patienceMs: number, reading: Promise<T>): Promise<T> {
  if (patienceMs === Infinity) return reading;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const silence = new Promise<never>((_, fail) => {
    const text = `The server has sent nothing for ${patienceMs / 1000} s`;
    timer = setTimeout(() => fail(new Error(text)), patienceMs);
  });
  try {
    return await Promise.race([reading, silence]);
  } finally {
    clearTimeout(timer);
  }
}

export function eventOf(block: string): ServerEvent | null {
  let name = "message";
  const data: string[] = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
  }
  return data.length ? { name, data: data.join("\n") } : null;
}
