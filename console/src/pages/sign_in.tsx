/** Asks for an API key, and says where one comes from. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import type { Problem } from "../api/client.ts";
import { texts } from "../i18n/texts.ts";
import { Panel, Refusal, Text } from "../parts/panel.tsx";
import { key, signIn } from "../state/session.ts";

export function SignIn({ problem }: { readonly problem: Problem | undefined }): JSX.Element {
  const t = texts.value.signIn;
  const [secret, setSecret] = useState("");
  const submit = (event: Event) => {
    event.preventDefault();
    signIn(secret.trim());
  };
  const isMissing = key === "" && problem?.status === 401;
  return (
    <Panel title={t.title}>
      {isMissing ? <p>{t.needed}</p> : problem?.status === 401 ? <p class="notice bad">{t.wrong}</p> : problem?.status === 403 ? <p class="notice bad">{t.noRead}</p> : <Refusal error={problem} />}
      <form class="action" onSubmit={submit}>
        <Text label={t.key} type="password" value={secret} change={setSecret} required />
        <div class="buttons">
          <button class="primary" disabled={secret.trim() === ""}>
            {t.use}
          </button>
        </div>
      </form>
      <p class="hint">{t.kept}</p>
      <details open>
        <summary>{t.where}</summary>
        <p>{t.ask}</p>
        <p class="hint">{t.operators}</p>
        <pre class="command" tabIndex={0}>
          cuckood key new --name marketing --scopes read,write,redeem
        </pre>
      </details>
    </Panel>
  );
}
