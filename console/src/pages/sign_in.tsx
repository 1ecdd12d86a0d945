/** Asks for an API key. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Problem } from "../api/client.ts";
import { Panel, Refusal, Text } from "../parts/panel.tsx";
import { key, signIn } from "../state/session.ts";

export function SignIn({ problem }: { readonly problem: Problem | undefined }): JSX.Element {
  const [secret, setSecret] = useState("");
  const submit = (event: Event) => {
    event.preventDefault();
    void signIn(secret.trim());
    setSecret("");
  };
  const isMissing = key.value === "" && problem?.status === 401;
  return (
    <Panel title="API key">
      {isMissing ? (
        <p>This service requires a key. It is kept until this tab is closed.</p>
      ) : problem?.status === 403 ? (
        <p>This key lacks the scope `read`, without which there is nothing to show. Use another one.</p>
      ) : (
        <Refusal error={problem} />
      )}
      <form class="action" onSubmit={submit}>
        <Text label="Key" type="password" value={secret} change={setSecret} required />
        <div class="buttons">
          <button class="primary" disabled={secret.trim() === ""}>
            Use this key
          </button>
        </div>
      </form>
    </Panel>
  );
}
