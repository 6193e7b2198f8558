import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { textOf } from "./notices";

export type ViewBody = ComponentType<{ item: string }>;
export type ViewLoader = () => Promise<ViewBody>;

const loaded = new Map<ViewLoader, ViewBody>();

/** A view whose code is fetched when it is shown for the first time. */
export function LazyView({ load, item }: { load: ViewLoader; item: string }) {
  const [, setNumLoaded] = useState(0);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    if (loaded.has(load)) return;
    setProblem("");
    load().then(
      (body) => {
        loaded.set(load, body);
        setNumLoaded(loaded.size);
      },
      (error: unknown) => setProblem(textOf(error)),
    );
  }, [load]);
  const Body = loaded.get(load);
  if (Body) return <Body item={item} />;
  if (!problem) return <p class="quiet">Loading …</p>;
  return (
    <p role="alert">
      This part of the page was not loaded: {problem}. The server may have been updated.{" "}
      <button type="button" onClick={() => location.reload()}>
        Load the page again
      </button>
    </p>
  );
}
