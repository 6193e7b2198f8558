import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";

export interface Route {
  view: string;
  item: string;
}

export function routeOf(fragment: string): Route {
  const [view = "", ...rest] = fragment.replace(/^#\/?/, "").split("/");
  return { view, item: decodeURIComponent(rest.join("/")) };
}

export const route = signal<Route>(routeOf(location.hash));
addEventListener("hashchange", () => {
  route.value = routeOf(location.hash);
});

export function addressOf(view: string, item = ""): string {
  return item ? `#/${view}/${encodeURIComponent(item)}` : `#/${view}`;
}

export function Link(props: { to: string; item?: string; isCurrent?: boolean; children: ComponentChildren }) {
  return (
    <a href={addressOf(props.to, props.item)} aria-current={props.isCurrent ? "page" : undefined}>
      {props.children}
    </a>
  );
}
