import { adminToken, apiKey, type Secret } from "../api/secrets";

/** Forgets the key and the token that were given in this tab. Empty while there is none. */
export function SecretButtons() {
  return (
    <>
      <Forget secret={apiKey} />
      <Forget secret={adminToken} />
    </>
  );
}

function Forget({ secret }: { secret: Secret }) {
  if (!secret.value) return null;
  return (
    <button type="button" class="plain" onClick={() => secret.set("")}>
      Forget {secret === apiKey ? "key" : "token"}
    </button>
  );
}
