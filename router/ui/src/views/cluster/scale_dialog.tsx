/** How many workers of each role a model is to have. */
import { useState } from "preact/hooks";
import { admin } from "../../api/admin";
import type { Role, WorkerEntry } from "../../api/live_state";
import { Dialog } from "../../parts/dialog";
import { attempt } from "./actions";

const ROLES: readonly Role[] = ["prefill", "decode"];

export function ScaleDialog(props: { model: string; workers: readonly WorkerEntry[]; onClose: () => void }) {
  const [before] = useState(() => countsOf(props.workers));
  const [wanted, setWanted] = useState<Record<Role, number>>(before);
  const [isBusy, setBusy] = useState(false);
  const changed = ROLES.filter((role) => wanted[role] !== before[role]);

  const apply = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    for (const role of changed) {
      const text = `${props.model}: ${wanted[role]} ${role} workers are wanted.`;
      if (!(await attempt(() => admin.scale(props.model, role, wanted[role]), text))) {
        setBusy(false);
        return;
      }
    }
    props.onClose();
  };

  return (
    <Dialog title={`Scale ${props.model}`} onClose={props.onClose}>
      <form class="stack" onSubmit={apply}>
        {ROLES.map((role) => (
          <label key={role} class="field">
            {role} workers
            <input
              type="number"
              min={0}
              max={1000}
              required
              value={wanted[role]}
              onInput={(event) => setWanted({ ...wanted, [role]: event.currentTarget.valueAsNumber })}
            />
          </label>
        ))}
        <p class="quiet">
          New workers take a while to start. Workers that are too many take no new requests, and end once theirs have
          moved or ended.
        </p>
        <div class="buttons end">
          <button type="button" onClick={props.onClose}>
            Cancel
          </button>
          <button type="submit" class="primary" disabled={isBusy || !changed.length}>
            Apply
          </button>
        </div>
      </form>
    </Dialog>
  );
}

function countsOf(workers: readonly WorkerEntry[]): Record<Role, number> {
  const counts = { prefill: 0, decode: 0 };
  for (const worker of workers) if (!worker.is_draining) counts[worker.role] += 1;
  return counts;
}
