import type { ComponentType } from "preact";
import { Link, route } from "./parts/routing";
import { ChatView } from "./views/chat/chat_view";
import { ClusterView } from "./views/cluster/cluster_view";
import { PlaygroundView } from "./views/playground/playground_view";
import { RequestsView } from "./views/requests/requests_view";

interface View {
  name: string;
  title: string;
  body: ComponentType<{ item: string }>;
}

const VIEWS: readonly View[] = [
  { name: "chat", title: "Chat", body: ChatView },
  { name: "cluster", title: "Cluster", body: ClusterView },
  { name: "requests", title: "Requests", body: RequestsView },
  { name: "playground", title: "Playground", body: PlaygroundView },
];

/** The frame around the views: which one is shown follows from the fragment of the address, `#/NAME/ITEM`. */
export function App() {
  const { view: wanted, item } = route.value;
  const view = VIEWS.find((one) => one.name === wanted) ?? VIEWS[0];
  if (!view) return null;
  const Body = view.body;
  return (
    <>
      <header>
        <h1>Slipstream</h1>
        <nav aria-label="Views">
          {VIEWS.map((one) => (
            <Link key={one.name} to={one.name} isCurrent={one === view}>
              {one.title}
            </Link>
          ))}
        </nav>
      </header>
      <main>
        <Body item={item} />
      </main>
    </>
  );
}
