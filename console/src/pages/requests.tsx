/** What the page has asked of the service, each as a curl command. */

import type { JSX } from "preact";
import { target } from "../api/call.ts";
import { count, moment } from "../format.ts";
import { CurlButton } from "../parts/curl.tsx";
import { Tag } from "../parts/panel.tsx";
import { requests } from "../state/requests.ts";

export function Requests(): JSX.Element {
  return (
    <>
      <p class="lead">Everything on this page is done through the public API. These were its latest requests.</p>
      <div class="scroll" role="region" aria-label="Latest requests" tabIndex={0}>
        <table class="cards">
          <thead>
            <tr>
              <th scope="col">Request</th>
              <th scope="col">Time</th>
              <th scope="col">Status</th>
              <th scope="col" class="number">
                Took
              </th>
              <th scope="col" class="number">
                Times
              </th>
              <th scope="col">
                <span class="unseen">Command</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {requests.value.map((done) => (
              <tr key={`${done.at} ${done.call.method} ${target(done.call)}`}>
                <td>
                  <code>
                    {done.call.method} /{target(done.call)}
                  </code>
                </td>
                <td data-label="Time">{moment(new Date(done.at).toISOString())}</td>
                <td data-label="Status">
                  <Tag tone={done.status === 0 || done.status >= 400 ? "bad" : "good"}>{done.status || "no answer"}</Tag>
                </td>
                <td data-label="Took" class="number">{done.milliseconds.toFixed(0)} ms</td>
                <td data-label="Times" class="number">{count(done.times)}</td>
                <td class="acts">
                  <CurlButton call={() => done.call} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}
