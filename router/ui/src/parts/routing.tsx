import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";

/** What is shown, as the fragment of the address says: `#/VIEW/ITEM?NAME=VALUE`. */
export interface Route {
  view: string;
  item: string;
  query: URLSearchParams;
}

export function routeOf(fragment: string): Route {
  const [path = "", query = ""] = fragment.replace(/^#\/?/, "").split("?", 2);
  const [view = "", ...rest] = path.split("/");
  return { view, item: decoded(rest.join("/")), query: new URLSearchParams(query) };
}

function decoded(item: string): string {
  try {
    return decodeURIComponent(item);
  } catch {
    return item; // someone has typed a percent sign
  }
}

export const route = signal<Route>(routeOf(location.hash));
addEventListener("hashchange", () => {
  route.value = routeOf(location.hash);
});

export function addressOf(view: string, item = "", query: Record<string, string> = {}): string {
  const given = new URLSearchParams(Object.entries(query).filter(([, value]) => value));
  const path = item ? `#/${view}/${encodeURIComponent(item)}` : `#/${view}`;
  return given.size ? `${path}?${given}` : path;
}

/** Shows another address without an entry of its own in the browser's history, as for a filter while it is typed. */
export function replaceAddress(address: string): void {
  history.replaceState(null, "", address);
  route.value = routeOf(address);
}

interface LinkProps {
  to: string;
  item?: string;
  query?: Record<string, string>;
  isCurrent?: boolean;
  class?: string;
  children: ComponentChildren;
}

export function Link(props: LinkProps) {
  const address = addressOf(props.to, props.item, props.query);
  return (
    <a href={address} class={props.class} aria-current={props.isCurrent ? "page" : undefined}>
      {props.children}
    </a>
  );
}
