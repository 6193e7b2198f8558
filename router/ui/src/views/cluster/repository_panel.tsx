/** Tensor models of the repository and their instances. */
import { send } from "../../api/client";
import type { InstancesEntry, LiveState, RepositoryEntry } from "../../api/live_state";
import { runAction } from "./actions";

export function RepositoryPanel({ repository, state }: { repository: RepositoryEntry; state: LiveState }) {
  const canLoad = repository.control_mode === "explicit";
  const own = new Map(repository.instances.map((one) => [`${one.model}/${one.version}`, one]));
  return (
    <section aria-label="Model repository">
      <h3>Model repository</h3>
      <div class="wide">
        <table>
          <thead>
            <tr>
              <th scope="col">Model</th>
              <th scope="col">Version</th>
              <th scope="col">State</th>
              <th scope="col">Instances</th>
              <th scope="col">Latest change</th>
              {canLoad && <th scope="col">Actions</th>}
            </tr>
          </thead>
          <tbody>
            {repository.models.map((model) => {
              const instances = own.get(`${model.name}/${model.version}`);
              return (
                <tr key={`${model.name}/${model.version}`}>
                  <th scope="row">{model.name}</th>
                  <td>{model.version}</td>
                  <td class={model.state === "READY" ? "good" : "warning"}>
                    {model.state || "not loaded"} <span class="quiet">{model.reason}</span>
                  </td>
                  <td>{instances ? instancesText(instances) : "–"}</td>
                  <td class="quiet">{instances?.latest}</td>
                  {canLoad && (
                    <td>
                      <LoadButton name={model.name} isLoaded={model.state === "READY"} />
                    </td>
                  )}
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
      {!state.router?.calls_admin && <p class="quiet">Calls of the admin API are not forwarded here.</p>}
    </section>
  );
}

function LoadButton({ name, isLoaded }: { name: string; isLoaded: boolean }) {
  const verb = isLoaded ? "unload" : "load";
  const word = isLoaded ? "Unload" : "Load";
  const run = () =>
    runAction({
      title: `${word} ${name}?`,
      about: isLoaded ? "Requests to it are refused from then on." : "It serves once its instances have started.",
      button: word,
      isDangerous: isLoaded,
      run: () => send(`v2/repository/models/${encodeURIComponent(name)}/${verb}`, { method: "POST", body: {} }),
      done: `${name} is ${verb}ed.`,
    });
  return (
    <button type="button" class="plain" onClick={run}>
      {word}
      <span class="visually-hidden"> {name}</span>
    </button>
  );
}

function instancesText(instances: InstancesEntry): string {
  const hosts = Object.entries(instances.hosts);
  const where = hosts.length > 1 ? ` on ${hosts.map(([host, num]) => `${host}: ${num}`).join(", ")}` : "";
  return `${instances.count}${where}`;
}
