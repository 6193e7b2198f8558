import { useEffect, useState } from "preact/hooks";
import { textOf } from "../../parts/notices";

/** A value that is read every two seconds while it is shown. */
export function usePolled<T>(read: (abort: AbortSignal) => Promise<T>, isOn: boolean): [T | null, string] {
  const [value, setValue] = useState<T | null>(null);
  const [problem, setProblem] = useState("");
  useEffect(() => {
    if (!isOn) return;
    const leaving = new AbortController();
    let timer = 0;
    const poll = async () => {
      try {
        setValue(await read(leaving.signal));
        setProblem("");
      } catch (error) {
        if (leaving.signal.aborted) return;
        setProblem(textOf(error));
      }
      timer = window.setTimeout(poll, 2000);
    };
    void poll();
    return () => {
      leaving.abort();
      clearTimeout(timer);
    };
  }, [isOn]);
  return [value, problem];
}
