/** An update to another version or configuration, as far as it has come, and the way back. */
import { useState } from "preact/hooks";
import { admin } from "../../api/admin";
import { Dialog } from "../../parts/dialog";
import { attempt } from "./actions";
import { usePolled } from "./polled";

export function UpdateDialog({ model, onClose }: { model: string; onClose: () => void }) {
  const [config, setConfig] = useState("");
  const [split, setSplit] = useState("");
  const [update, problem] = usePolled((abort) => admin.update(model, abort), true);

  const begin = (event: Event) => {
    event.preventDefault();
    const percent = split ? Number(split) : null;
    void attempt(() => admin.beginUpdate(model, config, percent), `The update of ${model} begins.`);
  };

  return (
    <Dialog title={`Update ${model}`} onClose={onClose}>
      <p role="status" class={problem ? "bad" : "quiet"}>
        {problem || update?.line || "Asking …"}
      </p>
      {update?.is_active ? (
        <div class="buttons end">
          <button type="button" onClick={onClose}>
            Close
          </button>
          <button
            type="button"
            class="danger"
            onClick={() => attempt(() => admin.rollBack(model), `${model} goes back to the version before.`)}
          >
            Roll back
          </button>
        </div>
      ) : (
        <form class="stack" onSubmit={begin}>
          <label class="field">
            Configuration, a path on the driver's machine
            <input type="text" required value={config} onInput={(event) => setConfig(event.currentTarget.value)} />
          </label>
          <label class="field">
            Percent of new requests to try it with (none: update at once)
            <input
              type="number"
              min={0}
              max={100}
              value={split}
              onInput={(event) => setSplit(event.currentTarget.value)}
            />
          </label>
          <div class="buttons end">
            <button type="button" onClick={onClose}>
              Cancel
            </button>
            <button type="submit" class="primary">
              Begin
            </button>
          </div>
        </form>
      )}
    </Dialog>
  );
}
