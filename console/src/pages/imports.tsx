/** Imports on record: what runs, what has ended, and how. */

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { json } from "../api/client.ts";
import type { Import } from "../api/types.ts";
import { count, moment, span } from "../format.ts";
import { CurlButton } from "../parts/curl.tsx";
import { Refusal, Tag, type Tone } from "../parts/panel.tsx";
import { useResource } from "../parts/resource.ts";
import { allowed } from "../state/session.ts";

const TONES: Record<Import["state"], Tone> = {
  running: "warn",
  done: "good",
  checked: "quiet",
  failed: "bad",
  interrupted: "bad",
};

interface LineProps {
  readonly of: Import;
  readonly changed: () => void;
  readonly failed: (error: unknown) => void;
}

function Line({ of, changed, failed }: LineProps): JSX.Element {
  const kind = of.campaign === undefined ? "coupons" : "campaigns";
  const name = of.campaign ?? of.coupon ?? "";
  const stop = async () => {
    await json({ method: "DELETE", path: `v1/imports/${of.id}` }).then(() => failed(undefined), failed);
    changed();
  };
  return (
    <tr>
      <td data-label="Import">
        <code>{of.id}</code>
      </td>
      <td data-label="Into">
        <a href={`#/${kind}/${name}`}>{name}</a> <span class="beside">{of.mode}</span>
      </td>
      <td data-label="State">
        <Tag tone={TONES[of.state]}>{of.state}</Tag>
        {of.failure !== undefined && <small>{of.failure.detail}</small>}
        {of.warnings.map((warning) => (
          <small key={warning}>{warning}</small>
        ))}
      </td>
      <td data-label="Lines" class="number">
        {count(of.lines)}
      </td>
      <td data-label="Added" class="number">
        {count(of.added)}
      </td>
      <td data-label="Rejected" class="number">
        {count(of.rejected)}
      </td>
      <td data-label="Began">{moment(of.started_at)}</td>
      <td data-label="Took" class="number">
        {of.seconds < 60 ? `${of.seconds.toFixed(1)} s` : span(of.seconds)}
      </td>
      <td class="acts">
        {of.state === "running" && allowed("DELETE /v1/imports/{id}") && (
          <button type="button" class="small" aria-label={`Stop ${of.id}`} onClick={stop}>
            Stop
          </button>
        )}
      </td>
    </tr>
  );
}

export function Imports(): JSX.Element {
  const { value, error, reload } = useResource<{ imports: readonly Import[] }>({ method: "GET", path: "v1/imports" }, 2);
  const [failure, setFailure] = useState<unknown>(undefined);
  const imports = value?.imports ?? [];
  return (
    <>
      <p class="lead">
        The last hundred, the newest first. A file is imported on the page of its campaign or coupon.{" "}
        <CurlButton call={() => ({ method: "GET", path: "v1/imports" })} />
      </p>
      {error !== undefined && <Refusal error={error} />}
      {failure !== undefined && <Refusal error={failure} />}
      {value !== undefined && imports.length === 0 && <p>There are none on record.</p>}
      {imports.length > 0 && (
        <div class="scroll" role="region" aria-label="Imports" tabIndex={0}>
          <table class="cards">
            <thead>
              <tr>
                {["Import", "Into", "State", "Lines", "Added", "Rejected", "Began", "Took"].map((text) => (
                  <th key={text} scope="col" class={["Lines", "Added", "Rejected", "Took"].includes(text) ? "number" : undefined}>
                    {text}
                  </th>
                ))}
                <th scope="col">
                  <span class="unseen">What to do</span>
                </th>
              </tr>
            </thead>
            <tbody>
              {imports.map((one) => (
                <Line key={one.id} of={one} changed={() => void reload()} failed={setFailure} />
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}
