import { adminToken, apiKey, type Secret } from "../api/secrets";

/** Forgets the key and the token that were given in this tab, or asks for the key that was not given. */
export function SecretButtons() {
  return (
    <>
      {apiKey.isDeclined.value && (
        <button type="button" onClick={() => apiKey.ask(apiKey.value)}>
          Enter key
        </button>
      )}
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
