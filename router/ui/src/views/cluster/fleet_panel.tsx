/** What the driver knows: changes in progress and the planner's decisions. It needs the administrator's token. */
import { useState } from "preact/hooks";
import { admin, type Decision, type Fleet } from "../../api/admin";
import { adminToken } from "../../api/client";
import { Dialog } from "../../parts/dialog";
import { clock, duration } from "../../parts/format";
import { attempt } from "./actions";
import { usePolled } from "./polled";

export function FleetPanel() {
  const [isWanted, setWanted] = useState(false);
  const [isAdding, setAdding] = useState(false);
  const isOn = (isWanted || adminToken.value !== "") && !adminToken.isDeclined.value;
  const show = () => {
    adminToken.isDeclined.value = false;
    setWanted(true);
  };
  const [fleet, problem] = usePolled(admin.fleet, isOn);
  const [planner] = usePolled(admin.decisions, isOn && fleet !== null);
  return (
    <section aria-label="Changes and planner">
      <div class="cluster-head">
        <h3>Changes and planner</h3>
        {!isOn && (
          <button type="button" onClick={show}>
            Show (needs the administrator's token)
          </button>
        )}
        <div class="buttons end">
          <button type="button" onClick={() => setAdding(true)}>
            Add models
          </button>
        </div>
      </div>
      {isOn && problem && <p class="bad">{problem}</p>}
      {fleet && <Changes fleet={fleet} />}
      {planner && !planner.enabled && <p class="quiet">No planner is enabled.</p>}
      {planner?.enabled && <Decisions decisions={planner.decisions} />}
      {isAdding && <AddDialog onClose={() => setAdding(false)} />}
    </section>
  );
}

function Changes({ fleet }: { fleet: Fleet }) {
  const changing = fleet.members.filter((member) => member.state !== "ready");
  const wanted = `${fleet.num_prefill} prefill and ${fleet.num_decode} decode workers are wanted.`;
  return (
    <>
      <p>
        {wanted} {changing.length ? "" : "All of them serve."}
      </p>
      {changing.length > 0 && (
        <ul class="cluster-changes">
          {changing.map((member) => (
            <li key={member.name}>
              <strong>{member.name}</strong> ({member.role}) {member.state.replace("_", " ")} for{" "}
              {duration(member.for_s)} <span class="quiet">{member.detail}</span>
            </li>
          ))}
        </ul>
      )}
    </>
  );
}

function Decisions({ decisions }: { decisions: readonly Decision[] }) {
  if (!decisions.length) return <p class="quiet">The planner has not decided anything yet.</p>;
  return (
    <div class="wide cluster-decisions">
      <table>
        <caption>Decisions of the planner, the last one first</caption>
        <thead>
          <tr>
            <th scope="col">Time</th>
            <th scope="col">Decision</th>
            <th scope="col">Prefill / decode</th>
            <th scope="col">Why</th>
          </tr>
        </thead>
        <tbody>
          {decisions.map((one) => (
            <tr key={one.number} class={one.actions.length ? "" : "quiet"}>
              <td>{clock(one.unix_s * 1000)}</td>
              <td>{one.actions.length ? one.actions.map(actionText).join(", ") : one.reason.replaceAll("_", " ")}</td>
              <td>
                {one.num_prefill} / {one.num_decode}
              </td>
              <td class="cluster-why">
                {one.model ? `${one.model}: ` : ""}
                {one.why}
                {one.failed.length > 0 && <span class="bad"> Refused: {one.failed.join("; ")}</span>}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function actionText(action: Decision["actions"][number]): string {
  return [action.action, action.count, action.role, action.name].filter((part) => part !== undefined).join(" ");
}

function AddDialog({ onClose }: { onClose: () => void }) {
  const [config, setConfig] = useState("");
  const add = async (event: Event) => {
    event.preventDefault();
    onClose();
    await attempt(() => admin.addModels(config), `The models in ${config} serve.`);
  };
  return (
    <Dialog title="Add models" onClose={onClose}>
      <form class="stack" onSubmit={add}>
        <label class="field">
          File with models, an absolute path on the driver's machine
          <input type="text" required value={config} onInput={(event) => setConfig(event.currentTarget.value)} />
        </label>
        <p class="quiet">It takes until they serve. What came of it is shown in a notice.</p>
        <div class="buttons end">
          <button type="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="primary">
            Add
          </button>
        </div>
      </form>
    </Dialog>
  );
}
