import type { RefObject } from "preact";
import { useLayoutEffect, useState } from "preact/hooks";

/** How wide an element is, in pixels, within bounds. What is drawn to that width has texts of the page's size. */
export function useWidth(place: RefObject<Element | null>, least: number, most: number): number {
  const [width, setWidth] = useState(most);
  useLayoutEffect(() => {
    const element = place.current;
    if (!element) return;
    const measure = () => setWidth(Math.max(least, Math.min(most, element.clientWidth)));
    measure();
    const resized = new ResizeObserver(measure);
    resized.observe(element);
    return () => resized.disconnect();
  }, [least, most]);
  return width;
}
