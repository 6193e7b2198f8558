import { useEffect, useRef } from "preact/hooks";
import { apiKey } from "./api/secrets";
import { services } from "./api/services";
import { ConfirmDialog } from "./parts/confirm";
import { LazyView, type ViewLoader } from "./parts/lazy_view";
import { dismissErrors, Notices } from "./parts/notices";
import { Link, route } from "./parts/routing";
import { SecretButtons } from "./parts/secret_buttons";
import { SecretDialog } from "./parts/secret_dialog";
import { ThemeSwitch } from "./parts/theme";

interface View {
  name: string;
  title: string;
  load: ViewLoader;
}

const CHAT: View = { name: "chat", title: "Chat", load: async () => (await import("./views/chat/chat_view")).ChatView };
const PLAYGROUND: View = {
  name: "playground",
  title: "Playground",
  load: async () => (await import("./views/playground/playground_view")).PlaygroundView,
};
const CLUSTER: View = {
  name: "cluster",
  title: "Cluster",
  load: async () => (await import("./views/cluster/cluster_view")).ClusterView,
};
const VIEWS: readonly View[] = [
  CHAT,
  CLUSTER,
  {
    name: "requests",
    title: "Requests",
    load: async () => (await import("./views/requests/requests_view")).RequestsView,
  },
  PLAYGROUND,
];

/** The view that the address names; without one, the first that there is something to do in. */
function currentView(): View {
  const wanted = VIEWS.find((one) => one.name === route.value.view);
  if (wanted) return wanted;
  if (services.value?.areForClients === false) return CLUSTER;
  return services.value?.hasLanguageModels === false ? PLAYGROUND : CHAT;
}

/** The frame around the views. */
export function App() {
  const view = currentView();
  const main = useRef<HTMLElement>(null);
  const isFirst = useRef(true);
  useEffect(() => {
    document.title = `${view.title} – Slipstream`;
    // Who follows a link by keyboard goes on reading at the new view, and not at the top of the page.
    if (!isFirst.current) {
      main.current?.focus();
      dismissErrors();
    }
    isFirst.current = false;
  }, [view]);
  return (
    <>
      <button type="button" class="skip" onClick={() => main.current?.focus()}>
        Skip to content
      </button>
      <header class="frame">
        <p class="brand">Slipstream</p>
        <nav aria-label="Views">
          {VIEWS.map((one) => (
            <Link key={one.name} to={one.name} isCurrent={one === view}>
              {one.title}
            </Link>
          ))}
        </nav>
        <div class="frame-end">
          <SecretButtons />
          <ThemeSwitch />
        </div>
      </header>
      <main ref={main} id="main" tabIndex={-1}>
        {/* Once the key is given that was missing, the view is read anew. */}
        <LazyView
          key={apiKey.isDeclined.value ? "without" : ""}
          load={view.load}
          item={route.value.view === view.name ? route.value.item : ""}
        />
      </main>
      <Notices />
      <ConfirmDialog />
      <SecretDialog />
    </>
  );
}
