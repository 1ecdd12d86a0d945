/** What the page has asked of the service, each as a curl command. */

import type { JSX } from "preact";
import { target } from "../api/call.ts";
import { count } from "../format.ts";
import { texts } from "../i18n/texts.ts";
import { CurlButton } from "../parts/curl.tsx";
import { Tag, Time } from "../parts/panel.tsx";
import { Grid } from "../parts/table.tsx";
import { requests } from "../state/requests.ts";

export function Requests(): JSX.Element {
  const t = texts.value.requests;
  return (
    <>
      <p class="lead">{t.about}</p>
      <Grid
        label={texts.value.nav.requests}
        columns={[{ title: t.request }, { title: t.time }, { title: t.status }, { title: t.took, isNumber: true }, { title: t.times, isNumber: true }, { title: t.command, isActs: true }]}
        rows={requests.value.map(({ call, at, status, milliseconds, times }) => ({
          key: `${at} ${call.method} ${target(call)}`,
          cells: [
            <code>
              {call.method} /{target(call)}
            </code>,
            <Time at={new Date(at).toISOString()} />,
            <Tag tone={status === 0 || status >= 400 ? "bad" : "good"}>{status || t.noAnswer}</Tag>,
            `${milliseconds.toFixed(0)} ms`,
            count(times),
            <CurlButton call={() => call} />,
          ],
        }))}
      />
    </>
  );
}
