/** What is out of sight is not drawn again. */
import type { RefObject } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

type Listener = (isInSight: boolean) => void;

const listeners = new Map<Element, Listener>();
let observer: IntersectionObserver | null = null;

/** Calls the listener when the element comes near the window, and when it leaves. Returns what ends that. */
function watch(element: Element, listener: Listener): () => void {
  observer ??= new IntersectionObserver(
    (entries) => {
      for (const entry of entries) listeners.get(entry.target)?.(entry.isIntersecting);
    },
    { rootMargin: "25%" },
  );
  listeners.set(element, listener);
  observer.observe(element);
  return () => {
    listeners.delete(element);
    observer?.unobserve(element);
  };
}

/** The value; while the element is out of sight, the one that it had when it was seen last. */
export function useWhileInSight<T>(place: RefObject<Element | null>, value: T): T {
  const shown = useRef(value);
  const isInSight = useRef(true);
  const [, setNumArrivals] = useState(0);
  useEffect(() => {
    if (!place.current) return;
    return watch(place.current, (isNow) => {
      if (isNow && !isInSight.current) setNumArrivals((before) => before + 1);
      isInSight.current = isNow;
    });
  }, []);
  if (isInSight.current) shown.current = value;
  return shown.current;
}
